"""A real cluster of two workers: nothing is lost, doubled or out of order when its processes are slow, come, go or are
killed; and executors touch storage only."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger import LedgerClient
from pyspark_ledger.base.limits import Limits
from pyspark_ledger.client import client_of, open_namespace
from tests.support import REPOSITORY
from tests.support.cluster import StandaloneCluster, _spark_home
from tests.support.jobs import ROUND_TRIP, new_venv, package_as_zip, result, run, wait_for
from tests.support.scenes import ELASTIC, STEADY, ClusterDriver, standing_still

pytestmark = pytest.mark.spark

ROWS = 200_000
WALL = REPOSITORY / "tests" / "support" / "no_zookeeper"
# What pip brings with pyspark[connect], as far as this environment has it.
CONNECT_CLIENT = (
    "pyspark", "py4j", "pandas", "numpy", "pyarrow", "grpc", "grpc_status", "google", "zstandard", "dateutil", "pytz",
    "six", "tzdata", "typing_extensions",
)  # fmt: skip


@pytest.fixture(scope="module")
def knocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every try of an executor to reach ZooKeeper is noted."""
    return tmp_path_factory.mktemp("knocks") / "knocks"


@pytest.fixture(scope="module")
def cluster(zookeeper: str, knocks: Path) -> Iterator[StandaloneCluster]:
    """Its workers, and so their executors, are refused by ZooKeeper."""
    wall = {"PYTHONPATH": f"{WALL}:{REPOSITORY}", "NO_ZOOKEEPER": zookeeper, "KNOCKS": str(knocks)}
    with StandaloneCluster(workers=2, environment=wall) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(
    cluster: StandaloneCluster, zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterDriver]:
    folder = tmp_path_factory.mktemp("driver")
    driver = ClusterDriver(cluster, folder, f"{zookeeper}/cluster-{secrets.token_hex(8)}")
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def client(driver: ClusterDriver) -> Iterator[LedgerClient]:
    with LedgerClient(driver.zookeeper, str(driver.storage)) as client:
        yield client


@pytest.fixture(scope="module")
def numbers(driver: ClusterDriver, client: LedgerClient) -> str:
    """A topic with all numbers, in order."""
    client.create_topic("numbers", pa.schema([("id", pa.int64())]))
    driver.use(STEADY).ask("write", rows=ROWS, topic="numbers")
    return "numbers"


@pytest.fixture(autouse=True)
def _no_executor_knocks(knocks: Path) -> Iterator[None]:
    yield
    assert not knocks.exists(), f"executors tried to reach ZooKeeper: {knocks.read_text()}"


def test_source_and_sink_with_executors_that_cannot_reach_zookeeper_I1_I2(
    driver: ClusterDriver, numbers: str, zookeeper: str, knocks: Path
) -> None:
    seen = driver.use(STEADY).ask("look", zookeeper=zookeeper)
    assert {driver.cluster.number(task["folder"]) for task in seen} == {0, 1}
    assert [(task["zookeeper"], task["told"]) for task in seen] == [("ConnectionRefusedError", [])] * 2
    assert sorted(knocks.read_text().split()[::2]) == sorted(str(task["pid"]) for task in seen)
    knocks.unlink()  # so the wall stands, and who knocks is noted; from here on nobody does

    batches = driver.ask("copy", source=numbers, target="copies", options={"maxRowsPerTrigger": "90000"})
    assert [rows for rows in batches if rows] == [90_000, 90_000, 20_000]
    assert driver.ask("read", topic="copies", options={"minPartitions": "3"}) == list(range(ROWS))


def test_an_executor_that_is_lost_in_the_middle_of_a_write_changes_nothing_I1_I12(
    driver: ClusterDriver, client: LedgerClient, numbers: str
) -> None:
    with driver.use(STEADY).paused(client, numbers, "without-executor", tasks=[0, 1], attempts=2) as write:
        victim = write.attempts()[0]
        driver.cluster.kill_executors(driver.cluster.number(victim["folder"]))
        write.await_end_of(victim)
    assert sorted(attempt["task"] for attempt in write.attempts()) == sorted([0, 1, victim["task"]])
    assert driver.ask("read", topic="without-executor", options={}) == list(range(ROWS))
    # A task that finds out in time that its executor is gone deletes what it has begun.
    assert_gc_takes_what_is_left(client, "without-executor", files=(0, 1))


def test_a_worker_that_is_killed_in_the_middle_of_a_write_changes_nothing_I1_I12(
    driver: ClusterDriver, client: LedgerClient, numbers: str
) -> None:
    with driver.use(STEADY).paused(client, numbers, "without-worker", tasks=[0, 1], attempts=2) as write:
        victim = write.attempts()[-1]
        driver.cluster.kill_worker(driver.cluster.number(victim["folder"]))
        write.await_end_of(victim)
    driver.cluster.add_worker()  # for whoever comes next
    assert sorted(attempt["task"] for attempt in write.attempts()) == sorted([0, 1, victim["task"]])
    assert driver.ask("read", topic="without-worker", options={}) == list(range(ROWS))
    assert_gc_takes_what_is_left(client, "without-worker", files=(1,))


def test_spark_compacts_and_rewrites_while_executors_are_lost_I9_I12(
    driver: ClusterDriver, client: LedgerClient
) -> None:
    client.create_topic("accounts", pa.schema([("id", pa.int64()), ("balance", pa.int64())]), key="id")
    client.set_policies("accounts", snapshot_commits=5)
    written = [{"id": n % 300, "balance": None if n % 7 == 0 else n} for n in range(2_000)]
    with client.producer("accounts") as producer:
        for n, row in enumerate(written):
            producer.send(row)
            if n % 40 == 39:
                producer.flush()
    left = {row["id"]: row["balance"] for row in written}
    left = {key: balance for key, balance in left.items() if balance is not None}

    driver.use(STEADY)
    lose_an_executor_of(driver, client, "accounts", "compact", records_per_task=100)
    compacted = client.reader("accounts", end="latest", compacted=True)
    assert {record["id"]: record["balance"] for record in compacted} == left
    done = lose_an_executor_of(driver, client, "accounts", "rewrite")
    assert done[:2] == [9, 45]
    assert [dict(record.value) for record in client.reader("accounts", end="latest")] == written
    assert driver.ask("read", topic="accounts", options={"minPartitions": "3"}) == [row["id"] for row in written]
    assert client.verify("accounts", deep=True).is_sound


def test_a_connect_client_needs_neither_the_package_nor_zookeeper(
    driver: ClusterDriver, zookeeper: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The server is the driver on the cluster."""
    python = new_venv(tmp_path_factory.mktemp("connect"), only=CONNECT_CLIENT)
    script = tmp_path / "client.py"
    script.write_text(
        ROUND_TRIP + "from importlib.util import find_spec\n"
        "found = [name for name in ('pyspark_ledger', 'kazoo', 'xxhash') if find_spec(name)]\n"
        "spark = SparkSession.builder.remote(sys.argv[3]).getOrCreate()\n"
        "print(json.dumps([found, type(spark).__module__, round_trip(spark, *sys.argv[1:3])]))\n"
    )
    server = f"sc://127.0.0.1:{driver.use(STEADY).connect_port}"
    where = [f"{zookeeper}/connect-{secrets.token_hex(8)}", str(tmp_path), server]
    found, kind, copied = result([str(python), str(script), *where], tmp_path, python)
    assert (found, kind) == ([], "pyspark.sql.connect.session")
    assert copied == list(range(100))


def test_two_attempts_of_a_slow_task_both_write_and_one_counts_I1_I5_I12(
    driver: ClusterDriver, client: LedgerClient, numbers: str
) -> None:
    with driver.use(ELASTIC).paused(client, numbers, "twice", tasks=[0], attempts=2) as write:
        assert [attempt["task"] for attempt in write.attempts()] == [0, 0]
        with standing_still(driver.jvm):  # so that the first of the two cannot have the other one killed
            write.go_on()
            wait_for(lambda: sum(is_complete(file) for file in write.files()) == 3, driver.process)
    assert driver.ask("read", topic="twice", options={}) == list(range(ROWS))
    assert_gc_takes_what_is_left(client, "twice", files=(1,))


def test_a_stream_goes_on_while_its_executors_come_and_go_I1_I2(driver: ClusterDriver, client: LedgerClient) -> None:
    client.create_topic("trickle", pa.schema([("id", pa.int64())]))

    def feed(begin: int) -> None:
        with client.producer("trickle") as producer:
            for n in range(begin, begin + 100):
                producer.send({"id": n})

    def copied() -> list[int]:
        return [record["id"] for record in client.reader("trickled", end="latest")]

    driver.use(ELASTIC).ask("follow", source="trickle", target="trickled")
    feed(0)
    wait_for(lambda: "trickled" in client.topics() and copied() == list(range(100)), driver.process)
    wait_for(lambda: driver.ask("executors") == 0, driver.process)
    feed(100)
    wait_for(lambda: driver.ask("executors") > 0, driver.process)
    wait_for(lambda: copied() == list(range(200)), driver.process)
    driver.ask("unfollow")
    assert copied() == list(range(200))


def test_py_files_and_register(
    driver: ClusterDriver, zookeeper: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Neither the driver nor the executors have the package: it travels as a zip."""
    driver.rest()
    python = new_venv(tmp_path_factory.mktemp("bare"))
    look = "from importlib.util import find_spec; print(find_spec('pyspark_ledger'))"
    assert run([str(python), "-c", look], tmp_path, python) == "None\n"
    script = tmp_path / "job.py"
    script.write_text(
        ROUND_TRIP + "import pyspark_ledger\n"
        "spark = session(SparkSession.builder)\n"
        "pyspark_ledger.register(spark)\n"
        "def where(_):\n"
        "    import pyspark_ledger\n"
        "    return pyspark_ledger.__file__\n"
        "found = spark.sparkContext.parallelize(range(2), 2).map(where).collect()\n"
        "print(json.dumps([pyspark_ledger.__file__, *found, round_trip(spark, *sys.argv[1:])]))\n"
    )
    submit = [str(_spark_home() / "bin" / "spark-submit"), "--master", driver.cluster.url]
    submit += ["--py-files", str(package_as_zip(tmp_path / "ledger.zip")), "--executor-memory", "512m"]
    submit += ["--conf", f"spark.executorEnv.PYTHONPATH={WALL}"]
    where = [f"{zookeeper}/py-files-{secrets.token_hex(8)}", str(tmp_path)]
    *imported_from, copied = result([*submit, str(script), *where], tmp_path, python)
    assert len(imported_from) == 3
    assert all("ledger.zip" in path for path in imported_from)
    assert copied == list(range(100))


# -- helpers -----------------------------------------------------------------------------------------------------


def assert_gc_takes_what_is_left(client: LedgerClient, topic: str, files: tuple[int, ...]) -> None:
    """Attempts that did not count left so many files; they go once nothing can name them any more, and no other."""
    before = client.verify(topic)
    assert before.is_sound
    assert before.orphans in files
    with client_of(open_namespace(client.zookeeper, limits=Limits(gc_grace_ms=0))) as collector:
        collected = [collector.gc(topic).deleted for _ in range(3)]
    assert sum(collected) == before.orphans
    after = client.verify(topic)
    assert (after.is_sound, after.orphans, after.records) == (True, 0, before.records)


def lose_an_executor_of(driver: ClusterDriver, client: LedgerClient, topic: str, job: str, **arguments: int) -> object:
    """Runs the job, and kills an executor as soon as the first task has begun a file."""
    folder = driver.storage / client.topic(topic).uuid
    before = len(list(folder.rglob("*.arrow")))
    driver.begin(job, topic=topic, **arguments)
    wait_for(lambda: len(list(folder.rglob("*.arrow"))) > before, driver.process)
    driver.cluster.kill_executors(next(n for n in driver.cluster.alive if driver.cluster.executors(n)))
    assert driver.is_busy(), "the job was done before the executor was lost"
    return driver.answer()


def is_complete(file: Path) -> bool:
    try:
        pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        return False
    return True
