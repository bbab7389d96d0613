"""What every Python process is: see :mod:`.workers`."""

from __future__ import annotations

from typing import ClassVar

from pyspark_ledger.client import LedgerClient
from tests.soak.world import World


class Role:
    """What one process does. ``open`` is called when it begins, after it was fenced, and now and then after errors."""

    pause_s: ClassVar[float] = 0.3

    def __init__(self, world: World, name: str, start: int) -> None:
        self.world, self.name, self.process = world, name, f"{name}.{start}"
        self.chance = world.chance(name, start)
        self.recorder = world.recorder(self.process)

    def open(self, client: LedgerClient) -> None:
        self.client = client

    def step(self) -> bool | None:
        """One small thing. False: there was nothing to do."""
        raise NotImplementedError
