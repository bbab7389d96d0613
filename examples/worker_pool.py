"""A pool of worker processes shares a subscription: each order goes to one of them, what a killed one had in hand goes
to the others, and an order that nobody can handle becomes a dead letter. Run: python examples/worker_pool.py"""

import subprocess
import sys
import tempfile
import time
from collections import Counter

import pyarrow as pa

from pyspark_ledger import LedgerClient, LocalZooKeeper

ORDERS, WORKERS = 300, 4
NO_ADDRESS = 13  # the order that gets no label


def work(zookeeper: str, worker: str) -> None:
    """One worker, in a process of its own: prints a label for each order that it gets, until it is stopped."""
    with LedgerClient(zookeeper) as client, client.producer("labels") as labels:
        dead_letters = {"max_redeliveries": 2, "dead_letter_topic": "unprintable", "redelivery_delay_s": 0.1}
        with client.consumer("orders", "printing", "shared", prefetch=5, **dead_letters) as orders:
            for order in orders:
                time.sleep(0.01)  # that is how long a label takes
                if order["address"] is None:
                    orders.negative_acknowledge(order)  # perhaps it works the next time
                    continue
                labels.send({"order_id": order["order_id"], "worker": worker, "delivery": order.delivery_count})
                labels.flush()
                orders.acknowledge(order)  # after the label: an order may get two labels, but never none


def wait_until(client: LedgerClient, *, backlog: int) -> None:
    deadline = time.monotonic() + 60
    while client.cursor("orders", "printing").stats().backlog_records > backlog:
        if time.monotonic() > deadline:
            sys.exit("the workers did not get on")
        time.sleep(0.05)


def show(client: LedgerClient) -> None:
    for member in client.cursor("orders", "printing").stats().members:
        print(f"   {member.name}: {'alive' if member.is_alive else 'dead'}, has {member.records} orders")


def main() -> None:
    with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
        with LedgerClient(zookeeper.address, f"{folder}/ledger") as client:
            client.create_topic("orders", pa.schema([("order_id", pa.int64()), ("address", pa.string())]))
            label = [("order_id", pa.int64()), ("worker", pa.string()), ("delivery", pa.int64())]
            client.create_topic("labels", pa.schema(label))
            client.create_cursor("orders", "printing")
            with client.producer("orders") as producer:
                for number in range(ORDERS):
                    address = None if number == NO_ADDRESS else f"{number} Main Street"
                    producer.send({"order_id": number, "address": address})

            print(f"1. {WORKERS} workers share the subscription 'printing'.")
            command = [sys.executable, __file__, zookeeper.address]
            workers = [subprocess.Popen([*command, f"worker {number}"]) for number in range(WORKERS)]
            wait_until(client, backlog=ORDERS * 2 // 3)
            show(client)

            print("2. One is killed, with orders in hand. When its session has ended, the others get them.")
            workers[0].kill()
            wait_until(client, backlog=0)
            show(client)
            for worker in workers:
                worker.kill()
                worker.wait()

            print("3. An order without an address was tried three times, and is a dead letter now:")
            for letter in client.reader("unprintable", end="latest"):
                print(f"   {letter['record']}: {letter['reason']}")

            labels = [record.value for record in client.reader("labels", end="latest")]
            times = Counter(label["order_id"] for label in labels)
            print(f"orders {ORDERS}, with a label {len(times)}, with two {sum(count > 1 for count in times.values())}")
            print(f"labels by worker {dict(sorted(Counter(label['worker'] for label in labels).items()))}")
            print(f"labels for orders that a dead worker had in hand {sum(label['delivery'] > 1 for label in labels)}")


if __name__ == "__main__":
    work(*sys.argv[1:]) if sys.argv[1:] else main()
