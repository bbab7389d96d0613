"""Values that know nothing of the rest: positions, sets of numbers, names, limits, the clock."""
