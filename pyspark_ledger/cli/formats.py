"""Files of records that others read and write: Parquet, CSV and JSON lines."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

KINDS = ("parquet", "csv", "jsonl")
_ENDINGS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_GROUP_ROWS = 1 << 17  # of Parquet, which are in memory together,
_GROUP_BYTES = 64 << 20  # or so many bytes


def kind_of(file: str) -> str | None:
    """The format that a file's name tells."""
    return next((kind for ending, kind in _ENDINGS.items() if file.lower().endswith(ending)), None)


class Writer(AbstractContextManager["Writer"], ABC):
    """Writes batches into a file that somebody else opens and closes."""

    remark = ""  # for people, when it is done

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None:
        """What was kept back is written."""
        return

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()


def writer(kind: str, out: IO[bytes], schema: pa.Schema) -> Writer:
    if kind == "parquet":
        return _Parquet(out, schema)
    return _Csv(out, schema) if kind == "csv" else _JsonLines(out, schema)


class _Parquet(Writer):
    def __init__(self, out: IO[bytes], schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self._schema = schema
        self._writer = pq.ParquetWriter(out, schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=_GROUP_ROWS)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


class _JsonLines(Writer):
    def __init__(self, out: IO[bytes], schema: pa.Schema) -> None:
        from pyspark_ledger.files.jsonrows import encoder

        self._out, self._encode = out, encoder(schema)

    def write(self, batch: pa.RecordBatch) -> None:
        lines = (json.dumps(self._encode(row), ensure_ascii=False) for row in _rows(batch))
        self._out.write("".join(f"{line}\n" for line in lines).encode())


class _Csv(Writer):
    """An empty cell is null, so an empty text cannot be told from null any more."""

    def __init__(self, out: IO[bytes], schema: pa.Schema) -> None:
        from pyspark_ledger.files.jsonrows import encoder

        self._out, self._encode, self._names = out, encoder(schema), schema.names
        self._empty = 0
        self._write([schema.names])

    def write(self, batch: pa.RecordBatch) -> None:
        self._write([[self._cell(value) for value in self._encode(row).values()] for row in _rows(batch)])

    def _write(self, rows: list[list[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._out.write(text.getvalue().encode())

    def _cell(self, value: Any) -> Any:
        self._empty += value == ""
        if isinstance(value, bool | list | dict):
            return json.dumps(value, ensure_ascii=False)
        return value

    def close(self) -> None:
        if self._empty:
            self.remark = f"{self._empty:,} empty texts are empty cells, as null is: Parquet and JSON lines keep both"


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return batch.to_pylist() if batch.schema.names else [{}] * batch.num_rows
