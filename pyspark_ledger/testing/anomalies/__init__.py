"""What must never be in a history, each by a function of its own. None of them is allowed, in no circumstances."""
