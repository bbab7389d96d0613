"""Docstrings as this project writes them, for a page: examples become blocks, ``names`` and :class:`roles` code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`~?([^`]+)`")
NAME = re.compile(r"``([^`]+)``")
EXAMPLE = re.compile(r"(?:^[ ]*>>> .*\n(?:^[ ]*\S.*\n?)*)+", re.MULTILINE)


class Plain(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    return EXAMPLE.sub(_fenced, NAME.sub(r"`\1`", ROLE.sub(r"`\1`", text)))


def _fenced(found: re.Match[str]) -> str:
    return f"```pycon\n{found[0].rstrip()}\n```\n"
