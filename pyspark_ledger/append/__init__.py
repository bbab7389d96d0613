"""Appending: what may be appended, the one append protocol, and the Python producer."""
