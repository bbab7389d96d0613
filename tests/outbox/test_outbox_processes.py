"""The outbox on a real ZooKeeper, in real processes that are killed with SIGKILL while they work (I11)."""

from __future__ import annotations

import subprocess
import sys
import time

import pyarrow as pa

from pyspark_ledger.client import LedgerClient

ORDERS = pa.schema([("order_id", pa.int64())])
MESSAGES = 60

# Two processes run this side by side, each over all orders; what it dispatches goes into a pipe before it is told.
PROGRAM = """
import sys
from pyspark_ledger import LedgerClient
from pyspark_ledger.outbox.outbox import Dispatch, Send

def bill(number):
    def handler(state):
        done = [*(state or []), number]
        return done, [Send("invoices", {"order_id": number}), Dispatch(number)]
    return handler

def dispatch(payload, token):
    print(payload, token, flush=True)

with LedgerClient(sys.argv[1]) as client:
    outbox = client.outbox("billing", dispatch=dispatch, dispatch_tokens=client.tokens("parcels", "shipping"))
    for order in client.reader("orders", end="latest"):
        outbox.process(str(order["order_id"]), order.token, bill(order["order_id"]), entity=f"e{order['order_id'] % 3}")
print("done", flush=True)
"""


def test_two_processes_killed_again_and_again_process_each_order_once_I11(namespace, storage_root):
    with LedgerClient(namespace, storage_root) as client:
        for topic in ("orders", "invoices", "parcels"):
            client.create_topic(topic, ORDERS)
        with client.producer("orders", mint_tokens=True) as producer:
            for number in range(MESSAGES):
                producer.send({"order_id": number})
        dispatched: list[str] = []
        for kill_after in (3, 11, 17, None):
            programs = [
                subprocess.Popen([sys.executable, "-c", PROGRAM, namespace], stdout=subprocess.PIPE, text=True)
                for _ in range(2)
            ]
            for program in programs:
                dispatched += follow(program, kill_after)
        assert sorted(r["order_id"] for r in client.reader("invoices", end="latest")) == list(range(MESSAGES))
        states = [client.outbox("billing").state(f"e{n}") for n in range(3)]
        assert sorted(number for state in states for number in state) == list(range(MESSAGES))
        shipped = ship(client, dispatched)
        assert sorted(shipped) == list(range(MESSAGES)), "one parcel for each order, however often it was dispatched"
        assert [stats.in_flight for stats in client.tokens("orders").stats()] == [0]
        assert [stats.in_flight for stats in client.tokens("parcels").stats()] == [0]


def follow(program: subprocess.Popen[str], kill_after: int | None) -> list[str]:
    """What it dispatched until it was done, or killed a moment after so many messages."""
    assert program.stdout is not None
    lines: list[str] = []
    while (line := program.stdout.readline()).strip() not in ("", "done"):
        lines.append(line)
        if len(lines) == kill_after:
            time.sleep(0.004)
            program.kill()
            lines += program.stdout.readlines()
            break
    program.stdout.close()
    program.wait(30)
    return [line for line in lines if line.strip() not in ("", "done")]


def ship(client: LedgerClient, dispatched: list[str]) -> list[int]:
    """The receiver: it ships what has a token, and takes the token."""
    tokens = client.tokens("parcels", "shipping")
    return [int(number) for number, token in map(str.split, dispatched) if tokens.consume([token]) == [True]]
