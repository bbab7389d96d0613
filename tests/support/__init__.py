"""The worlds in which tests happen. Test modules import from here, and never from one another."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
