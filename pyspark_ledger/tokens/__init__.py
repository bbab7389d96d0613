"""Token-based deduplication: presence is the right to process, absence means duplicate."""
