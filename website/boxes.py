"""Boxes: a code host shows a quote that begins with [!WARNING] as one, and MkDocs wants !!! warning "Title". The title
is the first paragraph, if it is one line and more follows."""

from __future__ import annotations

import re

BOX = re.compile(r"^> \[!(NOTE|TIP|WARNING|IMPORTANT|CAUTION)\]\n((?:>.*\n?)+)", re.MULTILINE)
KINDS = {"NOTE": "note", "TIP": "tip", "WARNING": "warning", "IMPORTANT": "info", "CAUTION": "danger"}


def admonitions(markdown: str) -> str:
    return BOX.sub(_admonition, markdown)


def _admonition(found: re.Match[str]) -> str:
    lines = [line.removeprefix(">").removeprefix(" ") for line in found[2].splitlines()]
    title = ""
    if len(lines) > 2 and not lines[1]:
        title, lines = f' "{lines[0]}"', lines[2:]
    return "\n".join([f"!!! {KINDS[found[1]]}{title}", "", *(f"    {line}".rstrip() for line in lines), ""])
