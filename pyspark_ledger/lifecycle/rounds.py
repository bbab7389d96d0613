"""Rounds of maintenance: which actions are due, for which topics, and what came of them.

A topic that fails does not stop the others. Its error is said once, and it is tried again after longer and longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark_ledger.errors import LedgerError
from pyspark_ledger.lifecycle.actions import Action, ActionStats, Done, NamespaceAction, TopicAction
from pyspark_ledger.lifecycle.looking import Look, Seen
from pyspark_ledger.lifecycle.rates import Pace
from pyspark_ledger.lifecycle.schedule import Failures, Interval
from pyspark_ledger.log.namespace import OpenNamespace

logger = logging.getLogger(__name__)

_LOOK = "look"  # in place of an action: a topic that cannot even be looked at
_NOTHING = object()
_NAMESPACE = ""  # in place of a topic's name
# Somebody else does the same right now, or has just done it.
_OTHERS_TURN = {"LEDGER_COMPACTION_RUNNING", "LEDGER_COMPACTION_FENCED", "LEDGER_REWRITING_RUNNING", "LEDGER_CONFLICT"}


class Stopped(Exception):
    """Maintenance was asked to stop. Whatever it was doing can be left where it is."""


@dataclass(frozen=True, slots=True)
class _Note:
    """What an action has seen of a topic when it was done, and when it may have more to do."""

    of: object
    again_ms: int | None


class Rounds:
    """Some actions with a schedule each, done one after another."""

    def __init__(self, namespace: OpenNamespace, actions: Sequence[Action], pace: Pace) -> None:
        self._namespace, self._pace, self._clock = namespace, pace, namespace.clock
        self._look = Look(namespace)
        self._actions = actions
        self._intervals = {a.name: Interval(namespace.clock, a.every_s(namespace.limits)) for a in actions}
        self._failures = Failures(namespace.clock, namespace.limits.failing_s)
        self._notes: dict[tuple[str, str], _Note] = {}
        self._warned: dict[tuple[str, str], object] = {}
        self.stats = {name: ActionStats() for name in (*(action.name for action in actions), _LOOK)}
        self._runs = {a.name: a.start(namespace, self.stats[a.name]) for a in actions if isinstance(a, NamespaceAction)}

    @property
    def remaining(self) -> float:
        """Seconds until something is due."""
        return min(interval.remaining for interval in self._intervals.values())

    def run_due(self) -> None:
        """Does what is due by schedule."""
        self._run([action for action in self._actions if not self._intervals[action.name].remaining])

    def run_all(self) -> bool:
        """Does everything that there is to do, once. False if something failed."""
        before = sum(stats.failures for stats in self.stats.values())
        self._run(self._actions)
        return sum(stats.failures for stats in self.stats.values()) == before

    def _run(self, actions: Sequence[Action]) -> None:
        if not actions:
            return
        failures = {name: self.stats[name].failures for name in (*(action.name for action in actions), _LOOK)}
        of_topics = [action for action in actions if isinstance(action, TopicAction)]
        if of_topics:
            self._on_topics(of_topics)
        for action in actions:
            if isinstance(action, NamespaceAction):
                self._on_namespace(action)
        for action in actions:
            self._intervals[action.name].done()
        for name, before in failures.items():
            stats = self.stats[name]
            stats.runs += 1
            stats.failing = self._failures.count(name)
            if stats.failures == before:
                stats.last_success_ms = self._clock.now_ms()

    def _on_topics(self, actions: Iterable[TopicAction]) -> None:
        there = {_NAMESPACE}
        for first in self._look.all():
            there.add(first.topic.name)
            if self._failures.succeeded(_LOOK, first.topic.name):
                logger.info("works again action=%s topic=%s", _LOOK, first.topic.name)
            seen: Seen | None = first
            for action in actions:
                if seen is None:
                    break  # it was deleted meanwhile
                if self._is_due(action, seen):
                    seen = self._on_topic(action, seen)
        for name, error in self._look.unreadable.items():
            there.add(name)
            self._failed(_LOOK, name, error, 0.0)
        self._forget_all_but(there)

    def _is_due(self, action: TopicAction, seen: Seen) -> bool:
        name = seen.topic.name
        if self._failures.is_waiting(action.name, name) or not action.may_be_due(seen, self._namespace):
            self._warn(action.name, name, "", None)
            return False
        note = self._notes.get((action.name, seen.uuid))
        if note is None or note.of != self._fingerprint(action, seen):
            return True
        return note.again_ms is not None and note.again_ms <= self._clock.now_ms()

    def _fingerprint(self, action: TopicAction, seen: Seen) -> object:
        """What was seen over another connection may be of a history that a rollback has ended."""
        return self._namespace.metadata.connections, action.of(seen)

    def _on_topic(self, action: TopicAction, seen: Seen) -> Seen | None:
        """The topic as it is after that; None if it is gone."""
        name = seen.topic.name
        done = self._attempt(action, name, lambda: action.run(self._look.log(seen), self._pace))
        if done is None:
            return seen
        after = self._look.again(seen) if any(done.numbers.values()) else seen
        if after is not None:
            self._notes[action.name, seen.uuid] = _Note(self._fingerprint(action, after), done.again_ms)
        return after

    def _on_namespace(self, action: NamespaceAction) -> None:
        if not self._failures.is_waiting(action.name, _NAMESPACE):
            done = self._attempt(action, _NAMESPACE, lambda: self._runs[action.name](self._pace))
            if done is not None:
                self._note_failed(action.name, done.failed)

    def _note_failed(self, action: str, failed: Mapping[str, LedgerError]) -> None:
        """Of an action that has done what it could. It is tried again with the next round."""
        for topic in self._failures.of(action):
            if topic not in failed and self._failures.succeeded(action, topic):
                logger.info("works again action=%s topic=%s", action, topic)
        for topic, error in failed.items():
            self._failed(action, topic, error, 0.0)

    def _attempt(self, action: Action, topic: str, run: Callable[[], Done]) -> Done | None:
        """None if it failed, or somebody else is doing it."""
        stats, started = self.stats[action.name], self._clock.monotonic()
        self._pace.step()
        try:
            done = run()
        except Stopped:
            raise
        except LedgerError as error:
            if error.code not in ("LEDGER_TOPIC_DELETED", *_OTHERS_TURN):
                self._failed(action.name, topic, error, self._intervals[action.name].seconds)
            return None
        except Exception as error:
            self._failed(action.name, topic, error, self._intervals[action.name].seconds)
            return None
        finally:
            stats.seconds += self._clock.monotonic() - started
        self._succeeded(action, topic, done, self._clock.monotonic() - started)
        return done

    def _failed(self, action: str, topic: str, error: Exception, first_s: float) -> None:
        self.stats[action].failures += 1
        what = str(error) if isinstance(error, LedgerError) else f"{type(error).__name__}: {error}"
        if self._failures.failed(action, topic, what, first_s):
            unexpected = None if isinstance(error, LedgerError) else error
            logger.warning("failed action=%s topic=%s: %s", action, topic, what, exc_info=unexpected)

    def _succeeded(self, action: Action, topic: str, done: Done, seconds: float) -> None:
        self.stats[action.name].done.update(done.numbers)
        if self._failures.succeeded(action.name, topic):
            logger.info("works again action=%s topic=%s", action.name, topic)
        did = " ".join(f"{what}={number}" for what, number in done.numbers.items() if number)
        if did:
            logger.info("maintained topic=%s action=%s %s seconds=%.3f", topic, action.name, did, seconds)
        self._warn(action.name, topic, done.warning, done.about)

    def _warn(self, action: str, topic: str, warning: str, about: object) -> None:
        if not warning:
            self._warned.pop((action, topic), None)
        elif self._warned.get((action, topic), _NOTHING) != about:
            self._warned[action, topic] = about
            logger.warning("topic=%s action=%s: %s", topic, action, warning)

    def _forget_all_but(self, there: set[str]) -> None:
        self._failures.forget_all_but(there, {*self.stats} - {*self._runs})
        self._warned = {key: about for key, about in self._warned.items() if key[1] in there}
        uuids = self._look.uuids
        self._notes = {key: note for key, note in self._notes.items() if key[1] in uuids}
