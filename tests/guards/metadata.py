"""Transactions and ephemeral nodes."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = []
