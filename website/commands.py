"""The page of every command, made from click's tree: what it does, its arguments and its options."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pyspark_ledger.cli import main

TOP = """# Every command

Made from the commands themselves: this is what `--help` says. [The command line](../cli.md) shows them at work.
The options of `pyspark-ledger` itself may also stand after any command's name.
"""

EVERYWHERE = {parameter.name for parameter in main.get_params(click.Context(main))}  # said once, at the top


def page() -> str:
    root = click.Context(main, info_name="pyspark-ledger")
    return TOP + "\n" + "\n".join(_sections(root))


def _sections(context: click.Context) -> Iterator[str]:
    command = context.command
    group = isinstance(command, click.Group)
    if not group or context.parent is None:
        yield _section(context)
    if isinstance(command, click.Group):
        for name in sorted(command.list_commands(context)):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _sections(click.Context(below, parent=context, info_name=name))


def _section(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path}", f"```text\n{usage}\n```", _text(command.help)]
    records = [
        record
        for parameter in command.get_params(context)
        if (context.parent is None or parameter.name not in EVERYWHERE)
        and (record := parameter.get_help_record(context))
        and record[1]
    ]
    if records:
        rows = "\n".join(f"| `{name.replace('|', '/')}` | {_cell(said)} |" for name, said in records)
        parts.append(f"| option | |\n|---|---|\n{rows}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _text(help: str | None) -> str:
    """The words of --help. Signs that Markdown would take for its own are not."""
    return (help or "").replace("\b", "").strip().replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _cell(text: str) -> str:
    for sign in "|[]<*_":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
