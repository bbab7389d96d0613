"""Garbage collection and repair."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = []
