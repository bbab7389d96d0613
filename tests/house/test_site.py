"""The site builds without a warning, asks nobody else for anything, and its links work as they do on a code host."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from mkdocs.config import load_config

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.datasource.options import KNOWN
from tests.support import REPOSITORY
from tests.support.pages import blocks
from website import api, boxes, links, plots
from website.docstrings import as_markdown
from website.hooks import named

DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def build(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(folder)],
        cwd=REPOSITORY, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


class Requests(HTMLParser):
    """What a browser loads by itself with a page; links are followed by people."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = tag != "link" or given.get("rel") in ("stylesheet", "icon", "preconnect", "preload", "dns-prefetch")
        for name in ("src", "href", "srcset", "poster", "data"):
            if tag != "a" and loads and (value := given.get(name)):
                self.found.append(value)


def test_the_site_builds_strictly_and_asks_nobody_else_for_anything(tmp_path):
    done = build(tmp_path, REPOSITORY / "mkdocs.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    for page in tmp_path.rglob("*.html"):
        browser = Requests()
        browser.feed(page.read_text())
        assert browser.found, page
        assert [loaded for loaded in browser.found if re.match(r"(https?:)?//", loaded)] == [], page
    for style in tmp_path.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import\s*)[\"']?(?:https?:)?//", style.read_text()) == [], style
    options = (tmp_path / "options.html").read_text()
    assert all(f"<code>{name}</code>" in options for name in KNOWN.values())
    shown = (tmp_path / "reference" / "commands.html").read_text()
    assert "pyspark-ledger cursors reset" in shown
    assert "discard-planned" in shown
    assert 'id="pyspark_ledger.client.LedgerClient.reader"' in (tmp_path / "reference" / "api.html").read_text()
    assert (tmp_path / "files" / "examples" / "alerts.yml.html").exists()


@pytest.mark.parametrize("link", ["there.md", "here.md#no-such-heading", "../no-such-file.py"])
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path, link):
    """With the settings of mkdocs.yml, and a page of its own."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "here.md").write_text(f"# Here\n\n[there]({link})\n")
    config = tmp_path / "mkdocs.yml"
    whole = f"INHERIT: {REPOSITORY / 'mkdocs.yml'}\ndocs_dir: docs\nhooks: []\nplugins: []\nextra_css: []\n"
    config.write_text(whole + "theme: {name: mkdocs}\nnav: [{Here: here.md}]\n")
    done = build(tmp_path / "site", config)
    assert done.returncode != 0
    assert "here.md" in done.stdout + done.stderr


# -- links, boxes, docstrings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "written", "shown"),
    [
        ("concepts.md", "[a](options.md#reading)", "[a](options.md#reading)"),
        ("concepts.md", "[options.md](options.md#reading)", "[Options](options.md#reading)"),
        ("howto/a.md", "[options.md](../options.md)", "[Options](../options.md)"),
        ("operations.md", "[rules](../examples/alerts.yml)", "[rules](files/examples/alerts.yml.md)"),
        ("howto/a.md", "[rules](../../examples/alerts.yml)", "[rules](../files/examples/alerts.yml.md)"),
        ("upstream/a.md", "[script](a.py)", "[script](../files/docs/upstream/a.py.md)"),
        ("operations.md", "[this](../CONTRIBUTING.md#tests)", "[this](files/CONTRIBUTING.md#tests)"),
        ("files/README.md", "[a](docs/options.md)", "[a](../options.md)"),
        ("files/README.md", "![a](docs/pictures/log.svg)", "![a](../pictures/log.svg)"),
        ("a.md", "[web](https://example.org) [here](#here)", "[web](https://example.org) [here](#here)"),
        ("a.md", "```\n[x](../b.py)\n```\n", "```\n[x](../b.py)\n```\n"),
    ],
)
def test_a_link_is_written_for_a_code_host_and_works_on_the_site(uri, written, shown):
    assert links.on_the_site(written, uri, {"options.md": "Options"}) == shown


def test_files_that_pages_link_to_are_shown_and_missing_ones_are_not():
    made = links.pages({"a.md": "[rules](../examples/alerts.yml) [gone](../examples/no_such.py) [b](b.md)"})
    assert "files/examples/alerts.yml.md" in made
    assert "LedgerLag" in made["files/examples/alerts.yml.md"]
    assert made["files/README.md"] == (REPOSITORY / "README.md").read_text()
    assert not [uri for uri in made if "no_such" in uri or uri.endswith("b.md")]


def test_a_box_of_a_code_host_becomes_one_of_the_site():
    made = boxes.admonitions("> [!WARNING]\n> Traps\n>\n> - one\n\nafter\n")
    assert made == '!!! warning "Traps"\n\n    - one\n\nafter\n'
    assert boxes.admonitions("> [!NOTE]\n> one line\n") == "!!! note\n\n    one line\n"
    assert boxes.admonitions("> a quote\n") == "> a quote\n"


def test_an_example_in_a_docstring_becomes_a_block():
    text = "Says ``x``, as :class:`Y` does.\n\n>>> 1 + 1\n2\n\nMore."
    assert as_markdown(text) == "Says `x`, as `Y` does.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."


# -- what the pages must have ------------------------------------------------------------------------------------


def test_every_page_is_in_the_nav_of_mkdocs_yml_once():
    nav = [uri for uri, _ in named(load_config(str(REPOSITORY / "mkdocs.yml")).nav)]
    made = {"reference/api.md", "reference/commands.md", *(f"files/{name}" for name in links.HOME)}
    assert sorted(nav) == sorted({page.relative_to(DOCS).as_posix() for page in PAGES} | made)


def test_every_public_name_on_the_page_of_the_api_has_a_docstring():
    assert api.undocumented(api.page()) == []
    assert api.page().count("\n::: ") > 30


def test_a_public_name_without_a_docstring_is_found(monkeypatch):
    monkeypatch.setattr(Producer.flush, "__doc__", None)
    monkeypatch.setattr(LedgerClient.reader, "__doc__", " ")
    places = ["pyspark_ledger.append.producer.Producer", "pyspark_ledger.client.LedgerClient"]
    bare = api.undocumented("\n".join(f"::: {place}" for place in places))
    assert bare == [f"{places[0]}.flush", f"{places[1]}.reader"]


PLOTS = dict(plots.drawn(DOCS / "benchmarks.md"))


@pytest.mark.parametrize("name", PLOTS)
def test_every_plot_is_drawn_from_its_table_and_shown(name):
    assert (plots.FOLDER / f"{name}.svg").read_text() == PLOTS[name], "make pictures"
    assert f"](pictures/plots/{name}.svg)" in (DOCS / "benchmarks.md").read_text()


def test_no_other_plots_lie_about():
    assert {file.stem for file in plots.FOLDER.iterdir()} == PLOTS.keys()


def said_in_code() -> set[str]:
    """What the package has as a text of its own: codes of errors, and environment variables."""
    found = set()
    for file in (REPOSITORY / "pyspark_ledger").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"^\[?(LEDGER_[A-Z_]+)(?:\]|$)", node.value))
    return found


def first_cells(text: str, header: str) -> set[str]:
    """The names in the first column of all tables with this header."""
    tables = re.findall(rf"^\| {header} \|.*\n\|---.*\n((?:\|.*\n)+)", text, re.M)
    cells = [line.split("|")[1] for table in tables for line in table.splitlines()]
    return {name for cell in cells for name in re.findall(r"`(LEDGER_[A-Z_]+)`", cell)}


def test_the_page_of_errors_has_every_code_with_cause_and_remedy_and_no_other():
    text = (DOCS / "error-codes.md").read_text()
    variables = {name for page in PAGES for name in first_cells(page.read_text(), "variable")}
    assert first_cells(text, "code") == said_in_code() - variables
    rows = re.findall(r"^\| `LEDGER.*$", text, re.M)
    assert [row for row in rows if len([cell for cell in row.split("|")[1:-1] if cell.strip()]) != 3] == []


SPARKS_OWN = {"checkpointLocation", "path", "spark.log.level"}


@pytest.mark.parametrize("page", sorted((DOCS / "howto").glob("*.md")), ids=lambda page: page.stem)
def test_a_how_to_page_is_short_and_its_options_are_options(page):
    text = page.read_text()
    code = "\n".join(code for language, code in blocks(text) if language == "python")
    ast.parse(code)
    assert set(re.findall(r"\.option\(\"(\w+)\"", code)) <= {*KNOWN.values(), *SPARKS_OWN}
    assert len(text.splitlines()) < 70
