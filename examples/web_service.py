"""A web service whose handlers share one producer: an answer is sent when the record is in the log, and many records
share a commit. ZooKeeper goes away meanwhile, and no order is lost or doubled. Run: python examples/web_service.py"""

import asyncio
import json
import tempfile

import pyarrow as pa

from pyspark_ledger import InvalidInput, LedgerClient, LedgerError, LocalZooKeeper
from pyspark_ledger.append.producer import Producer

ORDERS = pa.schema([pa.field("order_id", pa.int64(), nullable=False), ("cents", pa.int64())])
STATUS = {201: "Created", 400: "Bad Request", 503: "Service Unavailable"}


class Service:
    """``POST /orders`` with an order as JSON."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:"))
        status, answer = await self.order(await reader.readexactly(length))
        body = json.dumps(answer).encode()
        writer.write(f"HTTP/1.1 {status} {STATUS[status]}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async def order(self, body: bytes) -> tuple[int, dict[str, str]]:
        try:
            sent = await self._producer.send(json.loads(body))  # waits for the commit, and not in this thread
            return 201, {"position": str(sent.position)}
        except InvalidInput as error:  # this order: it does not fit the topic
            return 400, {"error": str(error)}
        except LedgerError as error:  # nobody's fault: too much is waiting, or it could not be written in time
            return 503, {"error": str(error)}


async def post(port: int, order: object) -> tuple[int, dict[str, str]]:
    """A client of the service."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(order).encode()
    writer.write(f"POST /orders HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    head, _, told = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(told)


async def serve(producer: Producer, zookeeper: LocalZooKeeper) -> dict[int, str]:
    """Runs the service and its clients; returns where each order is, as the clients were told."""
    server = await asyncio.start_server(Service(producer).handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    placed: dict[int, str] = {}

    async def order(number: int) -> None:
        status, told = await post(port, {"order_id": number, "cents": 100 * number})
        assert status == 201, told
        placed[number] = told["position"]

    async with server:
        await asyncio.gather(*map(order, range(200)))
        print(f"1. 200 orders at once: {len(set(map(entry, placed.values())))} commits")
        status, told = await post(port, {"order_id": "seven", "cents": 700})
        print(f"2. an order that does not fit: {status}, {told['error']}")
        zookeeper.kill()
        orders = asyncio.gather(*map(order, range(200, 400)))
        await asyncio.sleep(0.5)
        print(f"3. 200 orders while ZooKeeper is away: {len(placed) - 200} answered", end="")
        await asyncio.to_thread(zookeeper.restart)
        await orders
        print(f"; when it is back: {len(placed) - 200}")
    return placed


def entry(position: str) -> str:
    return position.rpartition(":")[0]


with LocalZooKeeper() as zookeeper, tempfile.TemporaryDirectory() as folder:
    with LedgerClient(zookeeper.address, f"{folder}/ledger") as client:
        client.create_topic("orders", ORDERS)
        # An event loop must not wait for room: when too much is waiting, send raises, and the answer is 503.
        with client.producer("orders", "shop", send_timeout_s=0) as producer:
            placed = asyncio.run(serve(producer, zookeeper))
        found = {record["order_id"]: str(record.position) for record in client.reader("orders", end="latest")}
        records = sum(batch.num_rows for batch in client.reader("orders", end="latest").batches())
        print(f"4. orders answered {len(placed)}, in the log {records}, where the clients were told: {found == placed}")
