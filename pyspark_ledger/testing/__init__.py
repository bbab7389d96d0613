"""For tests, ours and yours: a metadata store and a disk in memory with faults on demand, a clock that follows from a
seed, a recorder and a checker of histories."""
