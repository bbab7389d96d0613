"""Who keeps the log in order: compaction, retention, rewriting and gc; and what bad luck there is."""

from __future__ import annotations

from pyspark_ledger.compaction import run as compaction
from pyspark_ledger.lifecycle import gc, repair, retention, rewriting
from pyspark_ledger.testing.history import CompactionSeen
from tests.simulation.process import Process
from tests.simulation.stage import LOG, OUT, TABLE


class Compactor(Process):
    """One of two. The second is refused while the first is at work, which is all that it can be expected to be told. A
    lock that nobody holds any more would stop both."""

    thinks_s = 2.0

    def step(self) -> None:
        compaction.compact(self.log(TABLE))

    def gets_on(self, since: float) -> bool:
        return any(each.done_at >= since for each in self.play.cast if isinstance(each, Compactor))


class CompactionLooker(Process):
    thinks_s = 1.0

    def step(self) -> None:
        self.faults.stop()
        with self.recorder.asking(CompactionSeen(topic=TABLE)) as call:
            head = self.log(TABLE).refresh(sync=True).head
            if head.generation is not None:
                call.ok(generation=head.generation.number, horizon=head.generation.horizon)


class Cleaner(Process):
    thinks_s = 4.0

    def step(self) -> None:
        gc.collect(self.log(self.stage.chance.choice([LOG, TABLE, OUT])))


class Trimmer(Process):
    """Gives up the ledgers before some place, as far as nobody holds them. A table is held by its horizon, as soon as
    it was compacted; before that its oldest keys would be lost for good."""

    thinks_s = 2.0

    def step(self) -> None:
        topic = self.play.old_topic
        if topic == TABLE and self.log(TABLE).refresh(sync=True).head.generation is None:
            return
        self.play.keep_a_copy(topic)  # what is given up was written, all the same
        retention.trim(self.log(topic), before=self.play.anywhere(topic))


class Rewriter(Process):
    """One of two. Puts the entries of every ledger that is sealed into one file. As of the compactors, the second is
    refused while the first is at work."""

    thinks_s = 2.0

    def step(self) -> None:
        rewriting.rewrite(self.log(self.play.old_topic), below_bytes=1 << 20, everything=True)

    def gets_on(self, since: float) -> bool:
        return any(each.done_at >= since for each in self.play.cast if isinstance(each, Rewriter))


class Operator(Process):
    """Repairs what was rolled back: the only thing that needs a person."""

    thinks_s = 1.0

    def step(self) -> None:
        for topic in (LOG, OUT):
            log = self.log(topic)
            if repair.inspect(log) is not None:
                repair.accept_loss(log)


class BadLuck(Process):
    """What happens to others: sessions end, the power fails, clocks jump, a file is damaged for a while, a disk is
    full."""

    thinks_s = 3.0

    def live(self) -> None:
        schedule = self.stage.schedule
        while self.play.troubled:
            schedule.wait(self.stage.some_time(self.thinks_s))
            if self.play.troubled:
                self.stage.chance.choice(
                    [
                        self.end_a_session,
                        self.kill_somebody,
                        self.jump,
                        self.damage,
                        self.fill_a_disk,
                        self.cut_the_power,
                    ]
                )()

    def somebody(self) -> Process:
        return self.stage.chance.choice([each for each in self.play.cast if each is not self])

    def end_a_session(self) -> None:
        """While its client is busy elsewhere."""
        client = self.somebody().metadata
        if not client._closed:
            client.expire()

    def kill_somebody(self) -> None:
        self.somebody().kill()

    def jump(self) -> None:
        """A wall clock is wrong, by a second or by a year."""
        wrong = self.stage.chance.choice([1_000, 3_600_000, 365 * 86_400_000])
        self.somebody().clock.skew_ms = self.stage.chance.choice([-1, 1, 0]) * wrong

    def fill_a_disk(self) -> None:
        faults = self.somebody().disk_faults
        faults.full_until_freed = True
        self.stage.later(self.stage.some_time(3.0), lambda: setattr(faults, "full_until_freed", False))

    def cut_the_power(self) -> None:
        """Of all machines but ZooKeeper's: what was not durable is lost, cut short or torn."""
        if self.stage.happens(0.5):
            for each in self.play.cast:
                each.kill()
            self.stage.disk.power_loss(self.stage.chance)

    def damage(self) -> None:
        """A file rots or is cut short, and somebody restores it from a copy after a while."""
        files = [path for path in self.stage.disk.files() if path not in self.play.damaged]
        durable = [path for path in files if self.stage.disk.is_durable(path) and self.stage.disk.content(path)]
        if not durable:
            return
        path = self.stage.chance.choice(durable)
        before = self.stage.disk.content(path)
        if self.stage.happens(0.5):
            self.stage.disk.flip(path, self.stage.chance)
        else:
            self.stage.disk.tear(path, self.stage.chance.randrange(len(before)))
        self.play.damage(path, before)
        self.stage.later(self.stage.some_time(4.0), lambda: self.play.mend(path))
