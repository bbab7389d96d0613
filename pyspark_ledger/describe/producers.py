"""What there is to know about producers."""

from __future__ import annotations

from pyspark_ledger.describe.rows import Row
from pyspark_ledger.metadata.records import ProducerState


def producer_row(state: ProducerState) -> Row:
    return {
        "producer": state.name,
        "sequence_id": state.sequence,
        "last_publish": state.publish_time,
        "numbers": "records" if state.per_record else "batches",
        "query": state.query,
        "run": state.run,
        "fenced_runs": len(state.past_runs),
    }
