"""Which workloads there are, in the order in which they run and are shown."""

from __future__ import annotations

from benchmarks.peers.work.ageing import Ageing
from benchmarks.peers.work.base import Workload
from benchmarks.peers.work.bulk import Narrow, Wide
from benchmarks.peers.work.cost import Cost
from benchmarks.peers.work.end_to_end import EndToEnd
from benchmarks.peers.work.kill import Kill
from benchmarks.peers.work.newest import Newest
from benchmarks.peers.work.s3 import OnS3
from benchmarks.peers.work.tiny_batches import TinyBatches
from benchmarks.peers.work.writers import Writers

WORKLOADS: tuple[type[Workload], ...] = (
    Narrow,
    Wide,
    TinyBatches,
    EndToEnd,
    Ageing,
    Kill,
    Newest,
    Writers,
    Cost,
    OnS3,
)
