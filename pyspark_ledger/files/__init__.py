"""Bytes in storage: entry files, masks, schemas, and the small files that records name."""
