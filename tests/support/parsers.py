"""Every parser of the package, as a function of bytes, with valid examples to begin from.

For any bytes whatever a parser returns, or raises an error of this package that says what is wrong: never another
exception, never without an end, never with more memory than the input can be worth. ``tests/testing/test_parsers.py``
tries that with hypothesis, ``make fuzz`` with atheris (:mod:`tests.support.fuzz`).

A parser that needs more than bytes takes it from the input's beginning: a number that chooses a kind of node, the
length of a tail.
"""

from __future__ import annotations

from tests.support import (  # noqa: F401 - they fill the table
    parsers_of_console,
    parsers_of_files,
    parsers_of_nodes,
    parsers_of_text,
)
from tests.support.parser_table import PARSERS, Parser

__all__ = ["PARSERS", "Parser"]
