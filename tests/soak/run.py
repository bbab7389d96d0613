"""One run: processes start, faults happen, faults stop, everybody goes on, everybody stops, and then it is judged."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_ledger.client import LedgerClient, namespace_of
from pyspark_ledger.errors import LedgerError
from pyspark_ledger.files import dead_letters
from pyspark_ledger.local.zookeeper import LocalZooKeeper
from pyspark_ledger.testing.checker import check
from pyspark_ledger.testing.history import FinalTokens, load
from tests.soak import ending, summary
from tests.soak.disk import Disk
from tests.soak.faults import Faults
from tests.soak.processes import Process
from tests.soak.workers import CarefulResetter, Looker, Minter, Named
from tests.soak.world import (
    ARCHIVE,
    BILLING,
    BY_KEY,
    COMPACT_AFTER_BYTES,
    DEAD,
    FOLLOW,
    JOBS,
    ORDERS,
    PAY,
    RETENTION,
    REWRITE_BELOW_BYTES,
    SHARE,
    SHORT_RETENTION,
    SUBSCRIPTIONS,
    TOPICS,
    WORK,
    World,
    patiently,
)

START_S = 240.0  # for everybody to have done something, on a busy machine
MAINTAINED_S = 120.0  # for ledgers to be given up, if that has not happened yet
GO_ON_S = 240.0  # for everybody to do something again when the faults are over
CATCH_UP_S = 240.0  # for those who are behind to come nearer to the end, again and again
CAUGHT_UP_S = 1200.0  # and to be there; in a long run more is left, and they have as long as that was, twice
STOP_S = 60.0
QUERIES = ("copy", "follow", "latest", "bill", "spread")
WRITERS = ("named", "plain", "service", "minter", "resetter", "careful")


def full_cast(world: World) -> list[Process]:
    roles = [
        "named-1", "named-2", "plain-1", "service-1", "minter-1", "spender-1", "reader-1", "worker-1", "worker-2",
        "resetter-1", "resetter-2", "careful-1", "looker-1", "archivist-1", "maintainer-1", "maintainer-2",
        "sharer-1", "sharer-2", "sharer-3", "keysharer-1", "keysharer-2", "keysharer-3", "transactor-1", "transactor-2",
    ]  # fmt: skip
    drivers = [
        Process(world, "driver-1", queries=("copy", "latest")),
        Process(world, "driver-2", queries=("follow", "bill", "spread")),
    ]
    return [*drivers, *(Process(world, name, name.partition("-")[0]) for name in roles)]


def short_cast(world: World) -> list[Process]:
    roles = [
        "named-1", "plain-1", "service-1", "minter-1", "spender-1", "reader-1", "worker-1", "resetter-1", "careful-1",
        "looker-1", "archivist-1", "maintainer-1", "maintainer-2", "sharer-1", "sharer-2", "keysharer-1", "keysharer-2",
        "transactor-1",
    ]  # fmt: skip
    return [Process(world, "driver-1", queries=QUERIES), *(Process(world, n, n.partition("-")[0]) for n in roles)]


def crowd(world: World, producers: int) -> list[Process]:
    """So many fight for one head that most wait for their turn, or are committed by others."""
    names = [("named" if number % 2 else "plain", f"{number + 100}") for number in range(producers)]
    return [Process(world, f"{role}-{number}", role) for role, number in names]


@dataclass
class Run:
    folder: Path
    seed: int
    seconds: float
    short: bool
    producers: int = 0  # more of them, all for one topic
    failures: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def caught_up_s(self) -> float:
        return max(CAUGHT_UP_S, 2 * self.seconds)

    @property
    def bound_s(self) -> float:
        """It ends within this time, whatever hangs."""
        return self.seconds + 2 * START_S + MAINTAINED_S + GO_ON_S + self.caught_up_s + 2 * STOP_S + 200

    def say(self, text: str) -> None:
        """To the console and into the folder that is kept."""
        line = f"{time.monotonic() - self.started:7.1f} s  {text}"
        print(line, flush=True)
        with (self.folder / "run.log").open("a") as log:
            log.write(line + "\n")

    def carry_out(self) -> bool:
        """True if everything was as it must be."""
        disk = Disk(self.folder / "disk", 64 + int(self.seconds / 4))
        disk.mount()
        with ExitStack() as stack:
            stack.callback(disk.unmount)
            if "SPARK_HOME" not in os.environ:
                os.environ["SPARK_HOME"] = str(_lean_spark(self.folder / "spark"))
            zookeeper = stack.enter_context(LocalZooKeeper(3, self.folder / "zookeeper", fsync=False))
            world = World(str(self.folder), f"{zookeeper.address}/soak", str(disk.storage), self.seed)
            world.save()
            client = stack.enter_context(world.client())
            cast = [*(short_cast(world) if self.short else full_cast(world)), *crowd(world, self.producers)]
            for process in cast:
                stack.callback(process.abandon)
            faults = Faults(world.chance("faults"), cast, zookeeper, disk, client, self.say)
            self._prepare(world, client)
            try:
                self._phases(world, client, cast, faults)
            except LedgerError as error:  # no fault is left by then that could lead to one
                self.failures.append(f"after the faults: {error}")
                self._stop(cast)
            self._judge(world, client, cast, faults)
            if self.failures and disk.is_mounted:  # the mount ends with this process
                shutil.copytree(disk.storage, self.folder / "storage-at-the-end", dirs_exist_ok=True)
        return not self.failures

    def _prepare(self, world: World, client: LedgerClient) -> None:
        """Topics and subscriptions; and some records, so that the first batch of every query has rows."""
        for topic, schema in TOPICS.items():
            client.create_topic(topic, schema, key="k" if topic == ORDERS else "")
            client.set_policies(topic, rewrite_below_bytes=REWRITE_BELOW_BYTES)
        retention = SHORT_RETENTION if self.short else RETENTION
        client.set_policies(ORDERS, retention_age=retention, compact_after_bytes=COMPACT_AFTER_BYTES)
        for name in SUBSCRIPTIONS:
            client.create_cursor(ORDERS, name)
        namespace_of(client).ensure_topic(DEAD, dead_letters.SCHEMA)
        looker = Looker(world, "looker-1", 0)  # so that it is known where the subscriptions begin
        looker.open(client)
        looker.step()
        for first in (Named(world, "named-1", 0), Minter(world, "minter-1", 0)):
            first.open(client)
            first.step()

    # -- phases ------------------------------------------------------------------------------------------------------

    def _phases(self, world: World, client: LedgerClient, cast: list[Process], faults: Faults) -> None:
        disk = "a small tmpfs" if faults.disk.is_mounted else "an ordinary folder"
        self.say(f"seed {self.seed}, {self.seconds:g} s of faults; the storage is {disk}")
        drivers = [process for process in cast if process.is_driver]
        for some in (drivers, [process for process in cast if not process.is_driver]):  # Spark starts best undisturbed
            for process in some:
                process.start()
            self._await_progress(world, some, START_S, "has done nothing since the start")
        self.say("everybody is at work: faults begin")
        faults.run(self.seconds)
        faults.end_all()
        self.say("faults are over")
        self._await_maintained(client)
        world.calm_down()
        self._await_progress(world, cast, GO_ON_S, "has done nothing since the faults are over")
        self.say("everybody goes on: writers stop")
        self._stop([process for process in cast if process.role in WRITERS])
        self._settle(world, client)
        self._await_caught_up(client)
        self.say("everybody has caught up: all stop")
        self._stop(cast)

    def _await_progress(self, world: World, cast: list[Process], seconds: float, text: str) -> None:
        since, deadline = time.time(), time.monotonic() + seconds
        waiting = _who_must_progress(cast)
        while waiting and time.monotonic() < deadline:
            for process in cast:
                process.look()
            waiting = [names for names in waiting if not any(_has_progressed(world, name, since) for name in names)]
            time.sleep(0.2)
        self.failures += [f"{' or '.join(names)} {text}, for {seconds:g} s" for names in waiting]

    def _await_maintained(self, client: LedgerClient) -> None:
        """A run in which nothing was given up would prove little."""
        done = {"compacted": False, "given up": False, "rewritten": False}
        deadline = time.monotonic() + MAINTAINED_S
        while not all(done.values()) and time.monotonic() < deadline:
            done = patiently(lambda: ending.maintained(client))
            time.sleep(0.3)
        self.failures += [f"nothing of '{ORDERS}' was {what}" for what, is_done in done.items() if not is_done]

    def _settle(self, world: World, client: LedgerClient) -> None:
        resetter = CarefulResetter(world, "careful-1", 0)
        resetter.open(client)
        patiently(resetter.settle)

    def _await_caught_up(self, client: LedgerClient) -> None:
        """Everything that was sent is copied, followed, acknowledged, noted and billed. How long that takes depends on
        the machine, and on how much was left; but nobody stands still."""

        def backlog(subscription: str) -> Callable[[], int]:
            return lambda: client.cursor(ORDERS, subscription).stats().backlog_records

        left: dict[str, Callable[[], int]] = {
            "the copy of the last order": lambda: ending.not_copied(client),
            "an empty backlog of the query": backlog(FOLLOW),
            "an empty backlog of the consumers": backlog(WORK),
            "an empty backlog of the archive": backlog(ARCHIVE),
            "an empty backlog of those who share": backlog(SHARE),
            "an empty backlog of those who share by key": backlog(BY_KEY),
            "the payment of every order": backlog(PAY),
            "the last order in its topic of several": lambda: not ending.is_spread(client),
            "every job's token": lambda: sum(s.in_flight for s in client.tokens(JOBS, BILLING).stats()),
        }
        least: dict[str, int] = {}
        end, deadline = time.monotonic() + self.caught_up_s, 0.0
        while left and time.monotonic() < (deadline or end):
            found = {what: patiently(count) for what, count in left.items()}
            if any(count < least.get(what, count + 1) for what, count in found.items()):
                deadline = min(end, time.monotonic() + CATCH_UP_S)
            least |= {what: min(count, least.get(what, count)) for what, count in found.items()}
            left = {what: left[what] for what, count in found.items() if count}
            time.sleep(0.3)
        why = f"for {CATCH_UP_S:g} s" if deadline < end else f"and time is up after {self.caught_up_s:g} s"
        self.failures += [f"{what} did not come: {least[what]} left, {why}" for what in left]

    def _stop(self, cast: list[Process]) -> None:
        deadline = time.monotonic() + STOP_S
        for process in cast:
            process.ask_to_stop()
        for process in cast:
            process.await_stop(deadline)

    # -- judgement ---------------------------------------------------------------------------------------------------

    def _judge(self, world: World, client: LedgerClient, cast: list[Process], faults: Faults) -> None:
        self.failures += [death for process in cast for death in process.deaths]
        self.failures += summary.wrong_names(world, faults.disk)
        try:
            self.failures += ending.leaks(world)
            logs = ending.read_everything(world, client)
        except LedgerError as error:  # the checker says what it can
            logs = {}
            self.failures.append(f"the final read: {error}")
        history = load(ending.history_of(world))
        for line in summary.lines(world, cast, faults.counts, logs, history):
            self.say(line)
        report = check(history)
        self.say(str(report))
        self.failures += [f"{anomaly.name}: {anomaly.text}" for anomaly in report.anomalies]
        self.failures += [f"not checked: {text}" for text in report.not_checked]
        if logs:
            present = next(event.present for event in reversed(history) if isinstance(event, FinalTokens))
            self.failures += ending.differences(client, logs, present)
            seconds = 5.0 if self.short else 60.0
            self.failures += ending.examine(client, faults.disk, world.chance("examine"), seconds, self.say)


def _who_must_progress(cast: list[Process]) -> list[list[str]]:
    """Each process and each query. Of those who take turns at a subscription, one."""
    each = [[name] for process in cast for name in process.queries or (process.name,) if process.role != "worker"]
    in_turns = [process.name for process in cast if process.role == "worker"]
    return [*each, in_turns] if in_turns else each


def _has_progressed(world: World, name: str, since: float) -> bool:
    """A process says when its last step began that went well; of a query Spark says when its last batch was done."""
    try:
        if name not in QUERIES:
            return float(world.progress(name).read_text() or 0) >= since
        lives = world.checkpoint("-").parent.glob(f"{name}*/commits/[0-9]*")
        return any(file.stat().st_mtime >= since for file in lives)
    except FileNotFoundError:
        return False


def _lean_spark(home: Path) -> Path:
    """PySpark without the zip of its own Python code: see spark_home in tests/conftest.py."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home.mkdir()
    for name in ("bin", "jars", "sbin"):
        (home / name).symlink_to(Path(found.origin).parent / name)
    return home
