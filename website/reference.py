"""Makes the tables of docs/options.md from the code. Run: python -m website.reference (make reference)"""

from __future__ import annotations

from pathlib import Path

from pyspark_ledger.datasource.option_table import with_tables

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"

if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
