"""Whether a consumer can be made with the arguments that a user gives. InvalidInput names the one that is wrong."""

from __future__ import annotations

from typing import get_args

from pyspark_ledger.base.given import is_number, is_whole
from pyspark_ledger.cursors.shares import Sharing
from pyspark_ledger.errors import InvalidInput


def check_sharing(
    type: str, prefetch: int | None, ack_timeout_s: float | None, *, read_compacted: bool = False
) -> None:
    """Whether a consumer of this type can be made with these arguments."""
    if read_compacted and type in get_args(Sharing):
        raise InvalidInput(
            f"read_compacted=True: only for the types exclusive and failover; this one is {type}",
            "LEDGER_INVALID_OPTION",
        )
    given = {"prefetch": prefetch, "ack_timeout_s": ack_timeout_s}
    for name, value in given.items():
        if value is not None and type not in get_args(Sharing):
            raise InvalidInput(
                f"{name}={value!r}: only for the types {' and '.join(get_args(Sharing))}; this one is {type}",
                "LEDGER_INVALID_OPTION",
            )
    if prefetch is not None and not (is_whole(prefetch) and prefetch >= 1):
        raise InvalidInput(f"prefetch={prefetch!r}: a whole number of at least 1 was expected", "LEDGER_INVALID_OPTION")
    if ack_timeout_s is not None and not (is_number(ack_timeout_s) and ack_timeout_s > 0):
        raise InvalidInput(
            f"ack_timeout_s={ack_timeout_s!r}: a number of seconds of more than 0 was expected", "LEDGER_INVALID_OPTION"
        )


def check_dead_letters(
    topic: str, max_redeliveries: int | None, dead_letter_topic: str | None, *, read_compacted: bool = False
) -> None:
    """Whether a consumer can be made with these arguments."""
    if read_compacted and dead_letter_topic is not None:
        raise InvalidInput(
            "read_compacted=True has no dead letters: leave out dead_letter_topic and max_redeliveries",
            "LEDGER_INVALID_OPTION",
        )
    if (max_redeliveries is None) != (dead_letter_topic is None):
        missing = "dead_letter_topic" if dead_letter_topic is None else "max_redeliveries"
        raise InvalidInput(
            f"{missing} is missing: give both max_redeliveries (how often a record comes again) and dead_letter_topic "
            "(where it goes then), or neither",
            "LEDGER_INVALID_OPTION",
        )
    if max_redeliveries is not None and not (is_whole(max_redeliveries) and max_redeliveries >= 0):
        raise InvalidInput(
            f"max_redeliveries={max_redeliveries!r}: a whole number of at least 0 was expected", "LEDGER_INVALID_OPTION"
        )
    if dead_letter_topic == topic:
        raise InvalidInput(
            f"dead_letter_topic='{topic}': it must be another topic than the one that is consumed",
            "LEDGER_INVALID_OPTION",
        )
