"""What the package said in a test, as its log lines."""

from __future__ import annotations

import pytest


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings and errors of the package. Not those of connections: one of another test, whose server was stopped,
    still says so for a moment."""
    ours = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    return [record.getMessage() for record in ours if ".zk_metadata.session" not in record.name]
