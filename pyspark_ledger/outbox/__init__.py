"""Handlers with business state whose effects happen once."""
