"""What Spark's own offset logs say of the queries whose checkpoint folders can be read here."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark_ledger.errors import InvalidInput
from pyspark_ledger.log.places import parts_of

Row = dict[str, Any]
_MOST_QUERIES = 200
_MOST_BYTES = 1 << 20  # of an offset file


def queries_in(folders: Sequence[Path]) -> list[Row]:
    """A row for each checkpoint: those that were given, and those right below them."""
    rows: list[Row] = []
    for folder in _checkpoints(folders):
        if len(rows) == _MOST_QUERIES:
            break
        try:
            rows.append(_query(folder))
        except (OSError, ValueError, KeyError, TypeError, RecursionError, InvalidInput) as error:
            rows.append({"checkpoint": str(folder), "error": f"{type(error).__name__}: {error}", "sources": []})
    return rows


def _checkpoints(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        if (folder / "offsets").is_dir():
            yield folder
            continue
        with contextlib.suppress(OSError):
            yield from sorted(each for each in folder.iterdir() if (each / "offsets").is_dir())


def _query(folder: Path) -> Row:
    planned, finished = _newest(folder / "offsets"), _newest(folder / "commits")
    metadata = folder / "metadata"
    id = json.loads(_text(metadata))["id"] if metadata.exists() else None
    found: Row = {"checkpoint": str(folder), "query": id, "planned_batch": planned, "finished_batch": finished}
    if planned is None:
        return {**found, "logged": None, "sources": []}
    file = folder / "offsets" / str(planned)
    logged = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    lines = _text(file).splitlines()[2:]  # after the version and Spark's own settings
    sources = [source for number, line in enumerate(lines) for source in _sources(number, line)]
    return {**found, "logged": logged, "sources": sources}


def _sources(number: int, line: str) -> Iterator[Row]:
    """Of one source of the query; of one that is no ledger its offset as it is."""
    named = line.partition(":{")  # a source with a name has it before its offset
    text = line if line.startswith("{") or not named[1] else "{" + named[2]
    try:
        parts = parts_of(json.loads(text), "the offset")
        for topic, fields in parts.items():
            yield {"source": number, "offset_topic": topic, "uuid": str(fields["id"]), "position": str(fields["pos"])}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidInput):
        yield {"source": number, "offset": line[:500]}


def _newest(folder: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return max((int(file.name) for file in folder.iterdir() if file.name.isdigit()), default=None)
    return None


def _text(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as opened:
        return opened.read(_MOST_BYTES)
