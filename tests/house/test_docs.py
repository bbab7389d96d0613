"""The documentation names what there is: options, methods, commands, errors, examples; and its links lead somewhere."""

from __future__ import annotations

import hashlib
import inspect
import re
import shlex
from unittest.mock import Mock

import click
import pytest

from pyspark_ledger.append.producer import Producer
from pyspark_ledger.base.setting_names import NAMES, variable
from pyspark_ledger.cli import main
from pyspark_ledger.cli.base import COMMON_OPTIONS
from pyspark_ledger.client import LedgerClient
from pyspark_ledger.compaction.table_view import TableView
from pyspark_ledger.console.api import changes, reads
from pyspark_ledger.cursors.consumer import Consumer
from pyspark_ledger.cursors.handle import CursorHandle
from pyspark_ledger.cursors.shared_consumer import SharedConsumer
from pyspark_ledger.datasource.options import KNOWN
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.log.reader import Reader
from pyspark_ledger.outbox.outbox import Outbox
from pyspark_ledger.outbox.transaction import Transaction
from pyspark_ledger.tokens.tokens import Tokens
from tests.support import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", *sorted([*DOCS.glob("*.md"), *DOCS.glob("howto/*.md")])]
HABITS = [REPOSITORY / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
TEXTS = {page: page.read_text() for page in (*PAGES, *HABITS)}

# Spark's Kafka source and sink, from the tables of its integration guide.
KAFKA_SOURCE = (
    "assign", "subscribe", "subscribePattern", "kafka.bootstrap.servers", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets",
    "failOnDataLoss", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
    "groupIdPrefix", "kafka.group.id", "includeHeaders", "startingOffsetsByTimestampStrategy",
)  # fmt: skip
KAFKA_SINK = ("kafka.bootstrap.servers", "topic", "includeHeaders", "kafka.partitioner.class")


def page(name: str) -> str:
    return TEXTS[REPOSITORY / "docs" / name]


def rows(text: str, header: str) -> list[list[str]]:
    """The cells of all tables whose first column has this header."""
    found, inside = [], False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
        elif line.startswith(f"| {header} |"):
            inside = True
        elif inside and not line.startswith("|---"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def section(text: str, title: str) -> str:
    return re.split(r"^## ", text.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


# -- what is named exists, and what exists is named --------------------------------------------------------------


def test_the_page_of_options_has_every_option_and_no_other():
    named = [name for cells in rows(page("options.md"), "option") for name in re.findall(r"`([^`]+)`", cells[0])]
    assert sorted(named) == sorted(KNOWN.values())


@pytest.mark.parametrize(
    "kind",
    [
        LedgerClient,
        Producer,
        Transaction,
        Reader,
        TableView,
        Consumer,
        SharedConsumer,
        CursorHandle,
        Tokens,
        Outbox,
        LocalZooKeeper,
    ],
)
def test_the_page_of_the_client_names_every_public_method_and_no_other(kind):
    cells = [line.split("|")[1] for line in section(page("client.md"), kind.__name__).splitlines() if line[:1] == "|"]
    named = {name for cell in cells for name in re.findall(r"`([a-z_]+)[`(]", cell)}
    bases = [base for base in kind.__mro__ if base.__module__.startswith("pyspark_ledger")]
    methods = {name for base in bases for name in vars(base) if not name.startswith("_")}
    attributes = set(re.findall(r"self\.([a-z]\w*)", inspect.getsource(kind.__init__)))
    assert methods - named == set()
    assert named - methods - attributes == set()


def test_the_page_of_the_command_line_shows_every_command():
    shown = [shlex.split(line, comments=True)[1:] for line in re.findall(r"^pyspark-ledger .*$", page("cli.md"), re.M)]

    def leaves(group, path=()):
        for name, command in group.commands.items():
            yield from leaves(command, (*path, name)) if isinstance(command, click.Group) else [[*path, name]]

    elsewhere = {"exporter": "monitoring.md"}
    for path in leaves(main):
        if path[0] in elsewhere:
            assert f"pyspark-ledger {path[0]}" in page(elsewhere[path[0]])
        else:
            assert any(line[: len(path)] == path for line in shown), path


def test_every_command_in_the_docs_is_one_that_the_command_line_takes(tmp_path, monkeypatch):
    """Those on lines of their own; of a pipe the first."""
    monkeypatch.chdir(tmp_path)
    for name in ("orders.csv", "orders.jsonl", "orders.parquet"):  # must be there to be written
        (tmp_path / name).touch()
    shown = {line for text in TEXTS.values() for line in re.findall(r"^ *pyspark-ledger (.*)$", text, re.M)}
    assert len(shown) > 50
    for line in sorted(shown):
        group, context = main, click.Context(main)
        words = shlex.split(line.partition(" | ")[0], comments=True)
        while isinstance(group, click.Group):
            name, group, words = group.resolve_command(context, words)
            context = click.Context(group, parent=context, info_name=name)
        group.parse_args(context, words)  # raises if it does not know an option, or a value does not fit


def test_the_page_of_the_console_has_every_endpoint_option_and_code():
    text = page("console.md")
    named = {tuple(re.sub(r"[{}`]", "", cell) for cell in cells[0].split(" ", 1)) for cells in rows(text, "request")}
    ours = {("GET", path) for path in (*reads(Mock(), Mock()), "/events")}
    ours |= {("POST", path) for path in changes(Mock())}
    assert named == {(method, re.sub(r"[{}]", "", path)) for method, path in ours}
    (command,) = [each for name, each in main.commands.items() if name == "console"]
    common = {option.name for option in COMMON_OPTIONS}
    for option in command.params:
        assert option.name in common or f"`{option.opts[0]}" in text, option.name
    code = "".join(file.read_text() for file in (REPOSITORY / "pyspark_ledger" / "console").glob("*.py"))
    for name in set(re.findall(r"LEDGER_CONSOLE_[A-Z_]+", code)) - {"LEDGER_CONSOLE_OPTIONS"}:
        assert f"`{name}`" in text, name


def test_the_kafka_guide_has_every_option_of_kafkas_source_and_sink():
    table = rows(page("kafka.md"), "Kafka's option")
    named = {name for cells in table for name in re.findall(r"`([^`]+)`", cells[0])}
    assert {*KAFKA_SOURCE, *KAFKA_SINK} <= named
    ours = {name for cells in table for name in re.findall(r"`([A-Za-z.]+)`", cells[1]) if not name.startswith(".")}
    assert ours
    assert ours <= set(KNOWN.values())


def test_every_error_code_and_variable_in_the_docs_is_one_of_the_code():
    code = "\n".join(file.read_text() for file in (REPOSITORY / "pyspark_ledger").rglob("*.py"))
    tests = (REPOSITORY / "tests" / "conftest.py").read_text()
    known = set(re.findall(r"LEDGER_[A-Z_]+", code + tests)) | {variable(name) for name in NAMES}
    named = {(file.name, name) for file, text in TEXTS.items() for name in re.findall(r"LEDGER_[A-Z_]+", text)}
    assert {(file, name) for file, name in named if name not in known} == set()


# -- pages and examples ----------------------------------------------------------------------------------------


def test_the_index_lists_every_page():
    listed = set(re.findall(r"^- \[[^]]+\]\(([^)]+)\)", page("README.md"), re.M))
    assert listed == {file.name for file in DOCS.glob("*.md") if file.name != "README.md"} | {"howto/index.md"}
    how_to = set(re.findall(r"\]\(([\w-]+\.md)\)", page("howto/index.md")))
    assert how_to == {file.name for file in DOCS.glob("howto/*.md") if file.name != "index.md"}


def test_every_example_is_listed_and_run_by_a_test():
    run = (REPOSITORY / "tests" / "house" / "test_examples.py").read_text()
    for file in (REPOSITORY / "examples").iterdir():
        if file.suffix not in (".py", ".ipynb") or file.name == "__init__.py":
            continue
        spellings = (file.name, f"examples.{file.stem}")
        for where in (TEXTS[REPOSITORY / "README.md"], page("README.md"), run):
            assert any(spelling in where for spelling in spellings), file.name


def test_every_script_that_the_docs_name_is_there():
    named = {name for text in TEXTS.values() for name in re.findall(r"\b(?:examples|tests)/[\w/]+\.\w+", text)}
    assert named
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


PICTURES = sorted((REPOSITORY / "docs" / "pictures").glob("*.dot"))


@pytest.mark.parametrize("source", PICTURES, ids=lambda source: source.stem)
def test_every_picture_is_rendered_from_its_source_and_shown(source):
    rendered = source.with_suffix(".svg").read_text()
    assert rendered.endswith(f"<!-- source: {hashlib.sha256(source.read_bytes()).hexdigest()} -->\n"), "make pictures"
    assert any(f"](pictures/{source.stem}.svg)" in text for text in TEXTS.values())


def test_every_picture_has_a_source():
    drawn = (REPOSITORY / "docs" / "pictures").glob("*.svg")
    assert sorted(picture.stem for picture in drawn) == [source.stem for source in PICTURES]


TAKEN = [
    file
    for folder in ("taken", "console")
    for file in sorted((REPOSITORY / "docs" / "pictures" / folder).iterdir())
    if file.suffix in (".png", ".svg")
]


@pytest.mark.parametrize("picture", TAKEN, ids=lambda picture: picture.name)
def test_every_picture_that_was_taken_of_a_real_run_is_shown_and_small(picture):
    assert any(f"pictures/{picture.parent.name}/{picture.name})" in text for text in TEXTS.values())
    assert picture.stat().st_size < 150_000


MODULE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|proto))`")


def test_every_module_that_the_docs_name_is_there():
    """Below the package, as in `log/seal.py`, or below the repository, as in `tests/house/test_docs.py`."""
    named = {(page.name, name) for page, text in TEXTS.items() for name in MODULE.findall(text)}
    assert ("architecture.md", "append/append.py") in named
    places = (REPOSITORY / "pyspark_ledger", REPOSITORY)
    assert {(page, name) for page, name in named if not any((place / name).exists() for place in places)} == set()


NAMED_IN_MODULE = re.compile(r"`(\w+)(?:\(\))?` \(`((?:[a-z_]+/)+[a-z_]+\.py)`\)")


def test_every_name_that_the_docs_give_with_its_module_is_defined_there():
    """As in "`seal` (`log/seal.py`)"."""
    named = {match for text in TEXTS.values() for match in NAMED_IN_MODULE.findall(text)}
    assert named
    for name, module in named:
        code = (REPOSITORY / "pyspark_ledger" / module).read_text()
        assert re.search(rf"^\s*(?:def|class) {name}\b", code, re.M), (name, module)


def test_the_architecture_has_a_row_for_every_room():
    rooms = {folder.name for folder in (REPOSITORY / "pyspark_ledger").iterdir() if (folder / "__init__.py").exists()}
    named = {name for cells in rows(page("architecture.md"), "room") for name in re.findall(r"`(\w+)`", cells[0])}
    assert named == rooms | {"client", "errors", "spark"}


LINKS = [
    (file.relative_to(REPOSITORY).as_posix(), target)
    for file, text in TEXTS.items()
    for target in dict.fromkeys(re.findall(r"\]\(([^)\s]+)\)", text))
    if not re.match(r"[a-z]+:", target)
]


@pytest.mark.parametrize(("file", "target"), LINKS)
def test_every_link_leads_somewhere(file, target):
    path, _, anchor = target.partition("#")
    linked = ((REPOSITORY / file).parent / path).resolve() if path else REPOSITORY / file
    assert linked.exists()
    if anchor:
        assert anchor in [slug(title) for title in re.findall(r"^#+ (.+)$", linked.read_text(), re.M)]


def slug(title: str) -> str:
    """As GitHub makes an anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
