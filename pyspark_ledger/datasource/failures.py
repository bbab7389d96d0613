"""What went wrong, in the ledger's own words, from whatever Spark has raised.

On its way through Spark an error of ours becomes a piece of a longer text: after what Spark says of its own, before
stack traces, the query's plan or a repetition of itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark_ledger import errors
from pyspark_ledger.errors import CursorUnderRevision, LedgerError, OutcomeUnknown, Unavailable

_OURS = re.compile(
    r"(?:pyspark_ledger\.errors\.(?P<kind>\w+): )?\[(?P<code>LEDGER_\w+)\] (?P<sentence>.*?)"
    # What follows in texts of Spark and Python. A sentence may have several lines, as one about a schema's columns.
    r"(?=\s+SQLSTATE: |\n\s*at \S+\(|\n=== Streaming Query ===|\n+JVM stacktrace:|\n+Driver stacktrace:|\nCaused by: |"
    r"\n+Traceback \(most recent call last\)|\n+During handling of the above|\n+The above exception was|\s*\Z)",
    re.DOTALL,
)
_REPETITION = "\n\nJVM stacktrace:"


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the ledger that came through Spark.

    Attributes:
        code: the stable name of the error, as LEDGER_TOPIC_NOT_FOUND.
        sentence: what happened and what to do.
        kind: its class in pyspark_ledger.errors; LedgerError itself where the text does not tell.
    """

    code: str
    sentence: str
    kind: type[LedgerError] = LedgerError

    @property
    def may_restart(self) -> bool:
        """Whether a query may simply be started again from its checkpoint: ZooKeeper or the storage did not answer, or
        somebody was resetting its subscription. Any other error needs a person, or comes again at once."""
        return issubclass(self.kind, Unavailable | OutcomeUnknown | CursorUnderRevision)

    def __str__(self) -> str:
        return f"[{self.code}] {self.sentence}"


def error(raised: BaseException | None) -> Failure | None:
    """The ledger's error in what Spark has raised, or in what ``query.exception()`` returns; None if it has none.

    >>> try:
    ...     query.awaitTermination()
    ... except StreamingQueryException as raised:
    ...     print(error(raised).code)
    LEDGER_TOPIC_NOT_FOUND
    """
    seen: set[int] = set()
    while raised is not None and id(raised) not in seen:
        seen.add(id(raised))
        if isinstance(raised, LedgerError):
            return Failure(raised.code, raised.message, type(raised))
        found = _in_text(str(raised))
        if found is not None:
            return found
        raised = raised.__cause__ or (None if raised.__suppress_context__ else raised.__context__)
    return None


def _in_text(text: str) -> Failure | None:
    """The last one before the stack of the JVM, which repeats everything and may cut it off: where one error led to
    another, that one tells more."""
    message, _, repetition = text.partition(_REPETITION)
    found = list(_OURS.finditer(message)) or list(_OURS.finditer(repetition))
    if not found:
        return None
    kind = getattr(errors, found[-1]["kind"] or "", LedgerError)
    return Failure(found[-1]["code"], found[-1]["sentence"].strip(), kind)
