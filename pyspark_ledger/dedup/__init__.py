"""Deduplication by sequence id (PIP-6): producers, ids of batches, ids of records."""
