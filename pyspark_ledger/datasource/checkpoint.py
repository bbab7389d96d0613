"""Reads the sink's own checkpoint, if the driver can: it shows whether a batch is a replay or another with its id."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import xxhash

from pyspark_ledger.errors import LedgerError
from pyspark_ledger.files.storage import Root, normalise_uri, open_storage


class Checkpoint:
    """What is in ``checkpointLocation``. Every answer may be empty, for "not known", because the location may be one
    that only Spark's own file systems can read."""

    def __init__(self, location: str | None, storage: Root) -> None:
        # Trying an object store that pyarrow has no credentials for can take minutes: try only the kind that the
        # topic's files are in, and in the way that leads to them.
        self._settings = storage.settings
        kinds = ("file", urlsplit(storage.uri).scheme)
        self._location = location if location and urlsplit(normalise_uri(location)).scheme in kinds else None

    def query_id(self) -> str:
        data = self._read("metadata")
        try:
            return str(json.loads(data)["id"]) if data else ""
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""

    def digest(self, batch_id: int) -> bytes:
        """Of the offsets that Spark logged for a batch; empty if they cannot be read."""
        data = self._read(f"offsets/{batch_id}")
        return xxhash.xxh3_128_digest(data) if data else b""

    def _read(self, name: str) -> bytes:
        if self._location is None:
            return b""
        try:
            storage = open_storage(self._location, settings=self._settings)
            return storage.read_whole(name).to_pybytes()  # type: ignore[no-any-return]
        except (LedgerError, OSError):
            return b""
