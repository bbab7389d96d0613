"""Spark's source and sink on the driver."""

from __future__ import annotations

from tests.guards.guard import Guard

GUARDS = []
