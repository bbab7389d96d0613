"""``topics copy``: a topic's records in another namespace, or under another name."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from pyspark_ledger.cli.base import Command, Session
from pyspark_ledger.errors import InvalidInput, LedgerError

if TYPE_CHECKING:
    from pyspark_ledger.lifecycle.copy_topic import TopicCopy
    from pyspark_ledger.log.log import Log
    from pyspark_ledger.log.namespace import OpenNamespace

_NO_STORAGE = "LEDGER_STORAGE_NOT_SET"
_PASSWORD = "LEDGER_TO_ZOOKEEPER_PASSWORD"


@click.command(cls=Command)
@click.argument("topic")
@click.option("--to-profile", metavar="NAME", help="The other namespace, as a profile says it.")
@click.option("--to-zookeeper", metavar="HOSTS", help="The other namespace's connect string. Default: the same one.")
@click.option("--to-storage", help="Where the other namespace keeps its files; needed once, for its first topic.")
@click.option("--to-password", metavar="USER:PASSWORD",
              help=f"For the other ZooKeeper [{_PASSWORD}, else the password for this one].")  # fmt: skip
@click.option("--as", "name", metavar="NAME", help="The copy's name. Default: TOPIC.")
@click.option("--without-lost", is_flag=True, help="Leave out damaged entries that were given up by name.")
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.pass_obj
def copy(
    session: Session,
    topic: str,
    to_profile: str | None,
    to_zookeeper: str | None,
    to_storage: str | None,
    to_password: str | None,
    name: str | None,
    without_lost: bool,
    follow: bool,
) -> None:
    """Copy the records of TOPIC, each once, with its key, its columns and its policies.

    The command may be killed and run again: it goes on where it was, also with what was written to TOPIC since."""
    if to_profile is None and to_zookeeper is None and (to_storage or to_password):
        raise click.UsageError(
            "--to-storage and --to-password are for another namespace: name it with --to-profile or --to-zookeeper"
        )
    with ExitStack() as opened:
        client = opened.enter_context(session.client())
        here = target = session.namespace(client)
        if to_profile is not None or to_zookeeper is not None:
            password = to_password or os.environ.get(_PASSWORD)
            target = session.open_other(to_profile, to_zookeeper, to_storage, password)
            opened.callback(target.close)
        source = here.log(topic, watch=True)
        made = _made(source, target, name or topic, without_lost)
        copied = _run(session, source, made, follow)
        head = made.log.refresh(sync=True).head
    facts = {"topic": topic, "copy": made.log.topic.name, "copied": copied, "records": head.records, "end": head.end}
    sentence = (
        f"{topic}: {copied:,} records copied to '{made.log.topic.name}', which has {head.records:,}; end {head.end}"
    )
    session.output.done(sentence, facts)


def _made(source: Log, target: OpenNamespace, name: str, without_lost: bool) -> TopicCopy:
    from pyspark_ledger.lifecycle.copy_topic import TopicCopy

    try:
        return TopicCopy(source, target, name, around_lost=without_lost)
    except InvalidInput as error:
        if error.code != _NO_STORAGE:
            raise
        text = "the other namespace is new, and nothing says where its files go: add --to-storage, a folder or a URI"
        raise InvalidInput(f"{text} such as s3://bucket/prefix?region=…", _NO_STORAGE) from None


def _run(session: Session, source: Log, made: TopicCopy, follow: bool) -> int:
    from pyspark_ledger.log.reader import POLL_S, WAIT_S

    copied = 0
    with session.output.progress() as progress:
        try:
            while True:
                copied += made.catch_up(source.view(POLL_S), progress)
                if not follow:
                    break
                source.clock.sleep(WAIT_S)
        except KeyboardInterrupt:
            if not follow:
                raise LedgerError(_way_on("interrupted", made), "LEDGER_INTERRUPTED") from None
        except LedgerError as error:
            if isinstance(error, InvalidInput):
                raise
            raise type(error)(_way_on(error.message, made), error.code) from None
    made.finish()
    return copied


def _way_on(why: str, made: TopicCopy) -> str:
    why = why if why[-1:] in ".?!" else f"{why}."
    done = 0 if made.last is None else made.last + 1
    return f"{why} The copy has the records before number {done:,}; the same command again goes on from there"
