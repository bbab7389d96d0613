"""Topic compaction (PIP-14): the last record of every key, in generations of compacted files."""
