"""What the tests share: a ZooKeeper, a namespace of their own in it, a storage root, a Spark session."""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from kazoo.client import KazooClient

from pyspark_ledger.client import LedgerClient
from pyspark_ledger.local.zookeeper import LocalZooKeeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The same examples in every run, on any machine; HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", deadline=None, max_examples=1_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Python may keep what it has compiled, also where the environment says otherwise, as many images do: each test process
# would rewrite all assertions again, and each process that a test starts, Spark's too, compile the whole package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# For every JVM that a test starts: none lives long enough to be worth more than quick compilation.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


# Their tests are few for the time that they take: they start Spark anew, or a cluster, or let faults happen.
BEGIN_WITH = (
    "test_examples.py", "test_cluster.py", "test_soak.py", "test_pages.py", "test_ways_in.py", "test_sink_tokens.py",
    "test_stateful.py", "test_sink.py", "test_recovery.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first. One that begins when the others are done runs alone at the end."""
    order = {name: number for number, name in enumerate(BEGIN_WITH)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)) if "spark" in item.keywords else len(order))


@pytest.fixture(scope="session", autouse=True)
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """PySpark without the zip of its own Python code, which is then taken from where it is installed. Python keeps
    nothing of what it compiles from a zip: each of Spark's many Python processes would begin with half a second of
    that."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None or "SPARK_HOME" in os.environ:
        return
    home = tmp_path_factory.mktemp("spark")
    for name in ("bin", "jars", "sbin"):
        (home / name).symlink_to(Path(found.origin).parent / name)
    os.environ["SPARK_HOME"] = str(home)


@pytest.fixture(scope="session", autouse=True)
def power_stays_on() -> Iterator[None]:
    """Nobody cuts the power of the machine that runs the tests, and what was written survives every kill: so nothing of
    this process waits for the disk. Who checks that files are synced counts the calls, and who cuts the power has a
    disk in memory, or plays back the calls. A sync of what is not open fails as ever."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                patched.setattr(os, name, _no_sync)
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_lingers() -> Iterator[None]:
    """A producer stores records when its test says so: how many commits there are, and where a record is, must not
    depend on how busy the machine is. Tests of what it does by itself ask for it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(LedgerClient.producer.__kwdefaults__, "linger_ms", None)
        yield


def _no_sync(fd: int) -> None:
    os.fstat(fd)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[str]:
    """The connect string of a ZooKeeper, chosen by LEDGER_TEST_ZOOKEEPER: local, container, or an address."""
    choice = os.environ.get("LEDGER_TEST_ZOOKEEPER", "local")
    if choice == "local":
        with LocalZooKeeper(fsync=False) as server:
            yield server.address
    elif choice == "container":
        yield from _zookeeper_in_a_container()
    else:
        _require_answer(choice, 30)
        yield choice


def _zookeeper_in_a_container() -> Iterator[str]:
    from testcontainers.core.container import DockerContainer

    with DockerContainer("zookeeper:3.9").with_exposed_ports(2181) as container:
        address = f"{container.get_container_host_ip()}:{container.get_exposed_port(2181)}"
        _require_answer(address, 60)
        yield address


def _require_answer(address: str, seconds: float) -> None:
    client = KazooClient(address)
    try:
        client.start(seconds)
    finally:
        client.stop()
        client.close()


@pytest.fixture
def namespace(zookeeper: str) -> str:
    """A connect string with a chroot that nobody else uses."""
    return f"{zookeeper}/test-{secrets.token_hex(8)}"


@pytest.fixture
def storage_root(tmp_path: Path) -> str:
    return str(tmp_path / "storage")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    session = _session(SparkSession.builder, tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()


def _session(builder: SparkSession.Builder, warehouse: Path) -> SparkSession:
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": warehouse.as_uri(),
        "spark.python.unix.domain.socket.enabled": "true",
        # Local folders need no FileContext, and are quicker without it.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
    builder = builder.master("local[2]").appName("pyspark-ledger tests")
    for key, value in options.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@pytest.fixture(scope="session")
def moto_server():
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()
    server.stop()


@pytest.fixture
def s3_root(moto_server, monkeypatch) -> str:
    """A storage root on S3: a moto server on this machine."""
    import pyarrow.fs

    host, port = moto_server
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3 = pyarrow.fs.S3FileSystem(
        endpoint_override=f"{host}:{port}", scheme="http", region="us-east-1", allow_bucket_creation=True
    )
    s3.create_dir("ledger")
    return f"s3://ledger/{secrets.token_hex(8)}?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
