"""Every way to come to ``format("ledger")``: an installed wheel, --py-files, Connect, foreachBatch, a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyspark_ledger.local.zookeeper import _free_ports
from tests.support import REPOSITORY
from tests.support.cluster import StandaloneCluster, _spark_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PACKAGE = REPOSITORY / "pyspark_ledger"
# Not what a test wants to find out about: where this very process was told to look.
NOT_INHERITED = ("PYTHONPATH", "LEDGER_ZOOKEEPER", "LEDGER_STORAGE", "SPARK_HOME", "SPARK_REMOTE")

# The four ways to use it from Spark. The last line of what a script prints is its result.
ROUND_TRIP = """
import json, os, sys, time
from pathlib import Path
from pyspark.sql import SparkSession

def session(builder):
    for option in ("spark.ui.enabled=false", "spark.log.level=ERROR", "spark.sql.shuffle.partitions=2"):
        builder = builder.config(*option.split("="))
    return builder.getOrCreate()

def write(frame, topic, **options):
    frame.write.format("ledger").mode("append").options(**options).save(topic)

def copy(stream, topic, checkpoint, **options):
    sink = stream.writeStream.format("ledger").options(**options).option("checkpointLocation", checkpoint)
    sink.trigger(availableNow=True).start(topic).awaitTermination()

def read(spark, topic, **options):
    return [row.id for row in spark.read.format("ledger").options(**options).load(topic).collect()]

def round_trip(spark, zookeeper, folder):
    write(spark.range(100).coalesce(1), "numbers", zookeeper=zookeeper, storage=f"{folder}/storage")
    stream = spark.readStream.format("ledger").options(zookeeper=zookeeper, maxRowsPerTrigger=40).load("numbers")
    copy(stream, "copies", f"{folder}/checkpoint", zookeeper=zookeeper)
    return read(spark, "copies", zookeeper=zookeeper)
"""


# -- the package itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pyspark_ledger", "pyspark_ledger.DefaultSource"])
def test_what_every_spark_session_imports_loads_neither_arrow_nor_kazoo(name: str, tmp_path: Path) -> None:
    script = f"import json, sys, pyspark_ledger; {name}; print(json.dumps(sorted(sys.modules)))"
    loaded = set(result([sys.executable, "-c", script], tmp_path))
    assert "pyspark_ledger" in loaded
    assert not loaded & {"pyarrow", "kazoo", "google.protobuf", "xxhash"}


@pytest.mark.parametrize("room", ["datasource", "zk_metadata"])
def test_the_two_rooms_are_linked_at_the_top(room: str) -> None:
    assert (REPOSITORY / room).is_symlink()
    assert (REPOSITORY / room).resolve() == PACKAGE / room


# -- a wheel, and a zip ------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_an_installed_wheel_is_found_without_registration(
    namespace: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    python = new_venv(tmp_path_factory.mktemp("wheel"))
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], REPOSITORY)
    (wheel,) = tmp_path.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], tmp_path)

    script = ROUND_TRIP + (
        "import pyspark_ledger\n"
        "spark = session(SparkSession.builder.master('local[2]'))\n"
        "copied = round_trip(spark, *sys.argv[1:])\n"
        "print(json.dumps([pyspark_ledger.__file__, copied]))\n"
    )
    imported_from, copied = result([str(python), "-c", script, namespace, str(tmp_path)], tmp_path, python)
    assert Path(imported_from).is_relative_to(python.parent.parent)
    assert copied == list(range(100))


@pytest.mark.spark
def test_py_files_and_register(namespace: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    python = new_venv(tmp_path_factory.mktemp("bare"))
    absent = subprocess.run(
        [python, "-c", "import pyspark_ledger"], cwd=tmp_path, env=environment(python), capture_output=True, text=True
    )
    assert "No module named 'pyspark_ledger'" in absent.stderr

    archive, script = tmp_path / "ledger.zip", tmp_path / "job.py"
    with zipfile.ZipFile(archive, "w") as package:
        for file in PACKAGE.rglob("*.py"):
            package.write(file, file.relative_to(REPOSITORY))
    script.write_text(
        ROUND_TRIP + "import pyspark_ledger\n"
        "spark = session(SparkSession.builder)\n"
        "pyspark_ledger.register(spark)\n"
        "copied = round_trip(spark, *sys.argv[1:])\n"
        "print(json.dumps([pyspark_ledger.__file__, copied]))\n"
    )
    submit = [str(_spark_home() / "bin" / "spark-submit"), "--master", "local[2]", "--py-files", str(archive)]
    imported_from, copied = result([*submit, str(script), namespace, str(tmp_path)], tmp_path, python)
    assert "ledger.zip" in imported_from
    assert copied == list(range(100))


# -- Connect -----------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_connect(namespace: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    # Spark would take port 15002, and no other if somebody else on this machine has that one.
    script = ROUND_TRIP + (
        "from pyspark.sql.connect.client.core import DefaultChannelBuilder\n"
        "*where, port = sys.argv[1:]\n"
        "DefaultChannelBuilder.default_port = staticmethod(lambda: int(port))\n"
        "builder = SparkSession.builder.remote('local[2]').config('spark.connect.grpc.binding.port', port)\n"
        "spark = session(builder.config('spark.connect.grpc.binding.address', '127.0.0.1'))\n"
        "copied = round_trip(spark, *where)\n"
        # Errors, and threads.
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from pyspark_ledger import activate\n"
        "from pyspark_ledger.spark import error\n"
        "def told(act, *args, **options):\n"
        "    try:\n"
        "        act(*args, zookeeper=where[0], **options)\n"
        "    except Exception as raised:\n"
        "        found = error(raised)\n"
        "        return [found.code, found.kind.__name__, str(raised).find(str(found))]\n"
        "stream = spark.readStream.format('ledger').option('zookeeper', where[0]).load('numbers')\n"
        "text = stream.selectExpr('string(id) id')\n"
        "with ThreadPoolExecutor(initializer=activate, initargs=(spark,)) as pool:\n"
        "    read = pool.submit(told, read, spark, 'nmbers').result()\n"
        "    wrote = pool.submit(told, copy, text, 'copies', f'{where[1]}/other').result()\n"
        "print(json.dumps([type(spark).__module__, copied, read, wrote]))\n"
        "spark.stop()\n"
    )
    (port,) = _free_ports(1)
    kind, copied, *told = result([sys.executable, "-c", script, namespace, str(tmp_path), str(port)], tmp_path)
    assert kind == "pyspark.sql.connect.session"
    assert copied == list(range(100))
    assert [error[:2] for error in told] == [
        ["LEDGER_TOPIC_NOT_FOUND", "NotFound"],
        ["LEDGER_SCHEMA_MISMATCH", "InvalidInput"],
    ]
    assert all(0 < place < 300 for *_, place in told)  # near the top of a hundred lines


# -- foreachBatch ------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_foreach_batch_is_exactly_once_when_a_batch_is_replayed(
    spark: SparkSession, namespace: str, storage_root: str, tmp_path: Path
) -> None:
    where = {"zookeeper": namespace, "storage": storage_root}
    checkpoint = tmp_path / "checkpoint"
    brought: list[int] = []

    def feed(first: int, last: int) -> None:
        spark.range(first, last).coalesce(1).write.format("ledger").mode("append").options(**where).save("numbers")

    def copy(frame: DataFrame, batch: int) -> None:
        brought.append(batch)
        once = {"producerName": "copier", "sequenceId": str(batch)}
        frame.write.format("ledger").mode("append").options(**where, **once).save("copies")

    def run_to_the_end() -> None:
        stream = spark.readStream.format("ledger").options(**where, maxRowsPerTrigger=100).load("numbers")
        sink = stream.writeStream.foreachBatch(copy).option("checkpointLocation", str(checkpoint))
        sink.trigger(availableNow=True).start().awaitTermination()

    feed(0, 250)
    run_to_the_end()
    for file in (checkpoint / "commits").glob("*2*"):  # as if the driver had died before it could note batch 2
        file.unlink()
    feed(250, 300)
    run_to_the_end()

    assert brought == [0, 1, 2, 2, 3]
    copied = spark.read.format("ledger").options(**where).load("copies").collect()
    assert [row.id for row in copied] == list(range(300))


# -- a cluster ---------------------------------------------------------------------------------------------------

CLUSTER_JOB = (
    ROUND_TRIP
    + """
from pyspark import TaskContext

master, folder = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.executor.memory", "512m")
builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
builder = builder.config("spark.scheduler.minRegisteredResourcesRatio", 1)
builder = builder.config("spark.scheduler.maxRegisteredResourcesWaitingTime", "60s")
spark = session(builder)

def look(_):
    return [os.getcwd(), os.environ.get("LEDGER_ZOOKEEPER"), os.environ.get("LEDGER_STORAGE")]

def in_the_middle(batches):
    yield next(batches)
    task = TaskContext.get()
    about = {"task": task.partitionId(), "cwd": os.getcwd(), "pid": os.getpid()}
    note = Path(folder, "noted", f"{task.taskAttemptId()}")
    note.write_text(json.dumps(about))
    note.rename(note.with_suffix(".started"))
    deadline = time.monotonic() + 120
    while not Path(folder, "go").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield from batches

executors = spark.sparkContext.parallelize(range(2), 2).map(look).collect()
write(spark.range(1000).coalesce(1), "numbers")
stream = spark.readStream.format("ledger").option("minPartitions", 2).load("numbers")
copy(stream, "copies", f"{folder}/checkpoint")
copies = read(spark, "copies")
copy(stream.mapInArrow(in_the_middle, "id long"), "interrupted", f"{folder}/interrupted-checkpoint")
print(json.dumps({"executors": executors, "copies": copies, "interrupted": read(spark, "interrupted")}))
spark.stop()
"""
)


@pytest.fixture(scope="module")
def on_a_cluster(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a job on a real cluster found, one of whose two workers was killed in the middle of a write."""
    folder = tmp_path_factory.mktemp("cluster")
    noted = folder / "noted"
    noted.mkdir()
    known_to_the_driver = {"LEDGER_ZOOKEEPER": f"{zookeeper}/on-a-cluster", "LEDGER_STORAGE": str(folder / "storage")}
    with StandaloneCluster(workers=2) as cluster:
        command = [sys.executable, "-c", CLUSTER_JOB, cluster.url, str(folder)]
        with background(command, folder, known_to_the_driver) as job:
            wait_for(lambda: len(list(noted.glob("*.started"))) == 2, job)
            writing = [json.loads(note.read_text()) for note in noted.glob("*.started")]
            victim = next(task for task in writing if "/worker-0/" in task["cwd"])
            cluster.kill_worker(0)
            wait_for(lambda: not Path(f"/proc/{victim['pid']}").exists(), job)
            (folder / "go").touch()
            wait_for(lambda: job.poll() is not None, job)
            assert job.returncode == 0, (folder / "stderr").read_text()[-4000:]
    found: dict[str, Any] = json.loads((folder / "stdout").read_text().splitlines()[-1])
    attempts = [json.loads(note.read_text()) for note in noted.glob("*.started")]
    return found | {"attempts": attempts, "victim": victim}


@pytest.mark.spark
def test_a_stream_on_a_cluster_whose_executors_know_no_zookeeper(on_a_cluster: dict[str, Any]) -> None:
    folders = {cwd.partition("/app-")[0].rpartition("/")[2] for cwd, _, _ in on_a_cluster["executors"]}
    assert folders == {"worker-0", "worker-1"}
    assert [environment for _, *environment in on_a_cluster["executors"]] == [[None, None]] * 2
    assert on_a_cluster["copies"] == list(range(1000))


@pytest.mark.spark
def test_a_worker_that_dies_in_the_middle_of_a_write_changes_nothing(on_a_cluster: dict[str, Any]) -> None:
    tried = [attempt["task"] for attempt in on_a_cluster["attempts"]]
    assert sorted(tried) == sorted([0, 1, on_a_cluster["victim"]["task"]])
    assert on_a_cluster["interrupted"] == list(range(1000))


# -- helpers -----------------------------------------------------------------------------------------------------


def new_venv(folder: Path) -> Path:
    """A new virtual environment with everything that the package needs, but not the package; its Python."""
    venv.create(folder, symlinks=True)
    site_packages = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    # Folders named in a .pth file are searched last, and .pth files in them, as of editable installs, are not read.
    Path(site_packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def environment(python: Path | str = sys.executable) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return inherited | {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_HOME": str(_spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run(command: list[str], cwd: Path, python: Path | str = sys.executable) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment(python), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


def result(command: list[str], cwd: Path, python: Path | str = sys.executable) -> Any:
    return json.loads(run(command, cwd, python).splitlines()[-1])


@contextmanager
def background(command: list[str], cwd: Path, extra: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with (cwd / "stdout").open("wb") as stdout, (cwd / "stderr").open("wb") as stderr:
        job = subprocess.Popen(command, cwd=cwd, env=environment() | extra, stdout=stdout, stderr=stderr)
    try:
        yield job
    finally:
        job.kill()
        job.wait()


def wait_for(condition: Callable[[], bool], job: subprocess.Popen[bytes], seconds: float = 120.0) -> None:
    """Until the condition holds; a job that ends before it does cannot bring it about any more."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert job.poll() is None, f"the job ended with status {job.returncode} before its time"
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain"
        time.sleep(0.02)
