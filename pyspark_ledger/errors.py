"""Few kinds of error, named by what the caller should do about them.

Spark passes a Python error on as text, so its type is lost on the way: every message therefore starts
with a stable code in brackets, as in ``[LEDGER_TOPIC_NOT_FOUND] …``.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import ClassVar


class LedgerError(Exception):
    """The root of all errors of this package. Catch a kind to handle it, or this class for all of them.

    Attributes:
        message: what happened and what to do, in words.
        code: a stable name for it. Each kind has one of its own, and many errors have a more precise one.
        default_code: the kind's own code.

    >>> try:
    ...     client.topic("oders")
    ... except NotFound as error:
    ...     print(error)
    ...     print(error.code)
    [LEDGER_TOPIC_NOT_FOUND] there is no topic 'oders' in this namespace: did you mean 'orders'?
    LEDGER_TOPIC_NOT_FOUND
    """

    default_code: ClassVar[str] = "LEDGER_ERROR"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message, code)  # both in args, so that the error survives pickling
        self.message = message
        self.code = code or self.default_code

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


class InvalidInput(LedgerError):
    """An option, a name, a schema or a record is wrong: correct it. Nothing was changed."""

    default_code = "LEDGER_INVALID_INPUT"


class NotAllowed(InvalidInput):
    """ZooKeeper does not let this login do that: it has no role in the namespace, or not the one that is needed. Log in
    as somebody else, or have an admin give the role. Nothing was changed."""

    default_code = "LEDGER_NOT_ALLOWED"


class NotFound(LedgerError):
    """A topic, a subscription or the like does not exist: create it first, or correct the name."""

    default_code = "LEDGER_NOT_FOUND"


class Conflict(LedgerError):
    """Somebody else was faster, or uses the same thing: the message says whether to try again or what to change first.
    Nothing was changed."""

    default_code = "LEDGER_CONFLICT"


class Fenced(LedgerError):
    """A newer writer or reader has taken over: this one must stop. Nothing was changed."""

    default_code = "LEDGER_FENCED"


class CursorUnderRevision(LedgerError):
    """Somebody is resetting the subscription at this moment: try again. Nothing was changed."""

    default_code = "LEDGER_CURSOR_UNDER_REVISION"


class DataLoss(LedgerError):
    """Something that was in the log is no longer there. Decide how to go on; the message names the ways."""

    default_code = "LEDGER_DATA_LOSS"


class CorruptData(LedgerError):
    """A file or a ZooKeeper node is missing or is not what was written: restore it from a copy."""

    default_code = "LEDGER_CORRUPT_DATA"


class OutcomeUnknown(LedgerError):
    """A change was sent and its answer never came, so it may or may not have happened. Repeat it in a way that is safe
    in both cases: with the same sequence ids, tokens or operation id."""

    default_code = "LEDGER_OUTCOME_UNKNOWN"


class Unavailable(LedgerError):
    """ZooKeeper or the storage does not answer: try again later. Nothing was changed."""

    default_code = "LEDGER_UNAVAILABLE"


class damage:
    """Around what makes sense of bytes that were stored: whatever goes wrong with them becomes CorruptData, with the
    name of the thing and the reason. Errors of this package go on as they are.

    A class, because it is around every small entry that is read, and a generator would take longer than some of them.
    """

    __slots__ = ("_thing",)

    def __init__(self, thing: str) -> None:
        self._thing = thing

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, MemoryError):
            raise Unavailable(
                f"{self._thing} needs more memory than there is ({error}): give the process more. If it should be "
                "small, it is damaged: restore it from a copy",
                "LEDGER_OUT_OF_MEMORY",
            ) from error
        if isinstance(error, Exception) and not isinstance(error, LedgerError):
            why = str(error).partition("\n")[0]
            raise CorruptData(
                f"{self._thing} is damaged: {why or 'it is not as it was written'} ({type(error).__name__}); restore "
                "it from a copy"
            ) from error


# What the operating system says about a file, and what to do about it.
_NO_ROOM = "make room there"
_NO_ACCESS = "give the user of this process access to it"
_ADVICE = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EACCES: _NO_ACCESS,
    errno.EPERM: _NO_ACCESS,
    errno.EROFS: "mount it for writing",
    errno.ENOTDIR: "a part of its path is a file and no folder: move that, or choose another place",
    errno.EEXIST: "there is a file of that name: move that, or choose another place",
    errno.EMFILE: "raise the number of files that a process may have open (ulimit -n)",
    errno.ENFILE: "raise the number of files that the machine may have open",
}
_SEE_TO_THE_DISK = "see to the disk and its mount"


@contextmanager
def disk_errors(
    doing: str, where: object, code: str = "LEDGER_STORAGE_UNAVAILABLE", otherwise: str = _SEE_TO_THE_DISK
) -> Iterator[None]:
    """Around whatever may raise an OSError: it becomes Unavailable, as :func:`disk_error` says."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, doing, where, code, otherwise) from None


def disk_error(
    error: OSError,
    doing: str,
    where: object,
    code: str = "LEDGER_STORAGE_UNAVAILABLE",
    otherwise: str = _SEE_TO_THE_DISK,
) -> Unavailable:
    """An OSError for the user: with a code, the file and what to do. ``doing`` is what was tried, as in "write";
    ``otherwise`` is the advice where the error itself suggests none."""
    advice = _ADVICE.get(error.errno or 0, otherwise)
    return Unavailable(f"cannot {doing} {where}: {error.strerror or error}; {advice}, then try again", code)
