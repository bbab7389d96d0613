"""Tokens, and the records that were sent with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark_ledger.base.position import EARLIEST
from pyspark_ledger.testing.anomalies.facts import Anomaly, Facts, Topic, outcome, said
from pyspark_ledger.testing.history import FinalTokens, Send


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to spend a token: its records, which may be several."""

    topic: Topic
    send: Send
    values: tuple[str, ...]
    is_ok: bool
    was_left_out: bool

    @property
    def is_in_the_log(self) -> bool:
        return self.topic.final is not None and any(value in self.topic.where for value in self.values)


Attempts = dict[tuple[str, str], list[Attempt]]  # (group, token) -> who tried


def _attempts(facts: Facts) -> Attempts:
    found: Attempts = defaultdict(list)
    for topic in facts.topics:
        for send in topic.sends:
            by_token: dict[str, list[int]] = defaultdict(list)
            for number, row in enumerate(send.rows):
                if row.token is not None:
                    by_token[row.token].append(number)
            for token, numbers in by_token.items():
                rows = [send.rows[number] for number in numbers]
                ok = any(outcome(send, row) == "ok" for row in rows)
                values = tuple(row.value for row in rows)
                found[send.group, token].append(Attempt(topic, send, values, ok, send.is_ok and not ok))
    return found


def token_spent_twice(facts: Facts) -> Iterator[Anomaly]:
    """Two attempts to spend one token both had their effect, or were both told so (I11)."""
    for (group, token), attempts in _attempts(facts).items():
        spent: dict[tuple[str, tuple[str, ...]], Attempt] = {}
        for attempt in attempts:
            if attempt.is_ok or attempt.is_in_the_log:
                spent.setdefault((attempt.topic.name, attempt.values), attempt)
        if len(spent) > 1:
            listed = " and ".join(f"{each.values[0]!r} by {said(each.send)}" for each in spent.values())
            events = tuple(each.send for each in spent.values())
            yield Anomaly("token spent twice", f"token {token} of group '{group}' was spent for {listed}", events)


def token_without_effect(facts: Facts) -> Iterator[Anomaly]:
    """A token is gone, and nothing that was sent with it is in a log (I11)."""
    present = _present(facts)
    for (group, token), attempts in _attempts(facts).items():
        if any(each.is_in_the_log or each.topic.final is None or each.topic.start > EARLIEST for each in attempts):
            continue
        told_gone = [each for each in attempts if each.was_left_out or each.is_ok]
        is_gone = group in present and token not in present[group][0]
        if told_gone or is_gone:
            shown = [each.send for each in told_gone or attempts]
            seen = (present[group][1],) if group in present else ()
            text = f"token {token} of group '{group}' is gone ({', '.join(map(said, (*shown, *seen)))})"
            tried = f"{attempts[0].values[0]!r} of '{attempts[0].topic.name}'"
            yield Anomaly("token without effect", f"{text}, and its effect, {tried}, is not there", (*shown, *seen))


def effect_without_token(facts: Facts) -> Iterator[Anomaly]:
    """What was sent with a token is in the log, and the token is still there to be spent again (I11)."""
    present = _present(facts)
    for (group, token), attempts in _attempts(facts).items():
        if group not in present or token not in present[group][0]:
            continue
        for attempt in attempts:
            if attempt.is_in_the_log:
                text = f"{attempt.values[0]!r} by {said(attempt.send)} is in '{attempt.topic.name}', and its token "
                still = f"{token} of group '{group}' was not consumed"
                yield Anomaly("effect without token", text + still, (attempt.send, present[group][1]))


def _present(facts: Facts) -> dict[str, tuple[set[str], FinalTokens]]:
    return {event.group: (set(event.present), event) for event in facts.of(FinalTokens) if event.is_ok}
