"""Files: durable, whole, and in the right place."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = []
