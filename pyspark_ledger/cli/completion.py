"""``pyspark-ledger completion``: the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from pyspark_ledger.cli.base import Command

_NAME = "pyspark-ledger"
_VARIABLE = "_PYSPARK_LEDGER_COMPLETE"  # as click derives it from the name


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for SHELL that completes commands and options.

    \b
    bash: eval "$(pyspark-ledger completion bash)"           in ~/.bashrc
    zsh:  eval "$(pyspark-ledger completion zsh)"            in ~/.zshrc
    fish: pyspark-ledger completion fish | source            in ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.find_root().command, {}, _NAME, _VARIABLE).source())
