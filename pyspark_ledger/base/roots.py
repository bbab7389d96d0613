"""How this process was told to get into storage roots. A module of its own, because tasks import it, and have no
settings in most cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_ledger.base.settings import Settings

_told: dict[str, Settings | None] = {}


def tell(settings: Settings, root: str = "") -> None:
    """From now on, for a root in its one spelling; without one for all for which nothing else was said, as in a command
    that works on two."""
    how = settings.how_to_store()
    _told[root] = how if how.given else None


def told(root: str) -> Settings | None:
    return _told[root] if root in _told else _told.get("")
