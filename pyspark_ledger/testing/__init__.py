"""For tests, ours and yours: a metadata store in memory with faults on demand, a clock that follows from a
seed, a recorder and a checker of histories."""
