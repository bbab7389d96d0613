"""Links of the pages, which are written for a code host, as the site needs them.

- Out of docs/: operations.md links to ``../examples/alerts.yml``. The site gets a page ``files/examples/alerts.yml.md``
  with the file as a block of code, and the link leads there. What is Markdown becomes a page as it is. A file that is
  not there gets no page, so that MkDocs finds the link broken.
- Named as a file: ``[options.md](options.md#reading)`` gets the page's name in the nav instead.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDER = "files"  # on the site
HOME = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")  # pages of their own, linked to or not
SYNTAX = {".py": "python", ".yml": "yaml", ".json": "json", ".service": "ini", ".ipynb": "json", ".maintain": "docker"}

LINK = re.compile(r"\[([^]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
NAMED_AS_FILE = re.compile(r"(?:[\w-]+/)*[\w-]+\.md")
CODE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_the_site(markdown: str, uri: str, titles: Mapping[str, str]) -> str:
    """The text of a page as the site shows it. ``uri`` is the page's, ``titles`` the nav's names of pages by theirs."""

    def changed(found: re.Match[str]) -> str:
        place = _place(found[2], uri)
        text = titles.get(place, found[1]) if NAMED_AS_FILE.fullmatch(found[1]) else found[1]
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(uri) or '.')}{found[3] or ''})"

    pieces = CODE.split(markdown)  # every other piece is a block of code
    return "".join(piece if number % 2 else LINK.sub(changed, piece) for number, piece in enumerate(pieces))


def pages(texts: Mapping[str, str]) -> dict[str, str]:
    """The pages for HOME and for all files outside docs/ that a page links to, by their place on the site."""
    wanted = set(HOME)
    for uri, text in {**texts, **{f"{FOLDER}/{name}": _read(name) for name in HOME}}.items():
        wanted |= {file for _, target, _ in LINK.findall(text) if (file := _outside(_file(target, uri)))}
    return {_shown(file): _content(file) for file in sorted(wanted) if (REPOSITORY / file).is_file()}


def _file(target: str, uri: str) -> str:
    """The file of the repository that a link leads to. On a page below FOLDER it is relative to what the page shows."""
    source = uri.removeprefix(f"{FOLDER}/") if uri.startswith(f"{FOLDER}/") else f"docs/{uri}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def _outside(file: str) -> str:
    """The file, if the site has to make a page for it: MkDocs takes everything below docs/ but scripts."""
    return "" if file.startswith("docs/") and not file.endswith(".py") else file


def _place(target: str, uri: str) -> str:
    """Where on the site a link leads, from its root."""
    file = _file(target, uri)
    return _shown(file) if _outside(file) else file.removeprefix("docs/")


def _shown(file: str) -> str:
    return f"{FOLDER}/{file}" if file.endswith(".md") else f"{FOLDER}/{file}.md"


def _content(file: str) -> str:
    text = _read(file)
    if file.endswith(".md"):
        return text
    # Four backticks: the file may have three.
    return f"# {file}\n\n````{SYNTAX.get(Path(file).suffix, 'text')}\n{text.rstrip()}\n````\n"


def _read(file: str) -> str:
    return (REPOSITORY / file).read_text(encoding="utf-8")
