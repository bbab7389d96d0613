"""Gets the peers' jars by their Maven coordinates, with the ordinary `mvn`: `python -m benchmarks.peers.jars FOLDER`.

These versions were tried together, with the PySpark that pyproject.toml names in its extra peers. Spark's own jars come
with PySpark, so what belongs to Spark is taken without what it depends on. pulsar-spark is not among them: it is built
for Spark 3 only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

# What Spark loads, alone: all that these need beside it is in the list or in PySpark.
SPARK = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
    "io.delta:delta-spark_4.2_2.13:4.4.0",
    "io.delta:delta-storage:4.4.0",
)
# Hadoop's connector to S3 and what it reads with, alone; and of Amazon's client what these use, instead of the bundle
# of all services.
SPARK_S3 = (
    "org.apache.hadoop:hadoop-aws:3.5.0",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    "software.amazon.awssdk:s3:2.35.4",
    "software.amazon.awssdk:s3-transfer-manager:2.35.4",
    "software.amazon.awssdk:sts:2.35.4",
    "software.amazon.awssdk:apache-client:2.35.4",
    "software.amazon.awssdk:netty-nio-client:2.35.4",
)
# The broker, with everything that it needs.
BROKER = ("org.apache.kafka:kafka_2.13:4.2.0",)

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>peers</artifactId><version>1</version>
<packaging>pom</packaging><dependencies>
{dependencies}
</dependencies></project>
"""
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def pom(alone: tuple[str, ...], whole: tuple[str, ...]) -> str:
    """A project that does nothing but depend on these: on some alone, and on some with what they need."""
    dependencies = [(coordinate, _ALONE) for coordinate in alone] + [(coordinate, "") for coordinate in whole]
    return _POM.format(dependencies="\n".join(_dependency(*wanted) for wanted in dependencies))


def _dependency(coordinate: str, exclusions: str) -> str:
    group, artifact, version = map(escape, coordinate.split(":"))
    words = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    return f"<dependency>{words}{exclusions}</dependency>"


def get(folder: Path) -> None:
    """Into FOLDER/spark and FOLDER/broker. What is there already, for the same coordinates, is left alone."""
    alone = (*SPARK, *SPARK_S3[:2])
    for name, wanted in (("spark", pom(alone, SPARK_S3[2:])), ("broker", pom((), BROKER))):
        place = folder / name
        file = place / "pom.xml"
        if not (place / "done").exists() or not file.exists() or file.read_text() != wanted:
            _copy(place, wanted)


def _copy(place: Path, wanted: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        sys.exit("mvn is needed to get the peers' jars: apt-get install maven, or brew install maven")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    file = place / "pom.xml"
    file.write_text(wanted)
    command = [maven, "-B", "-q", "-f", str(file), _PLUGIN, f"-DoutputDirectory={place / 'jars'}"]
    if subprocess.run(command).returncode:
        sys.exit(f"mvn could not get the jars of {file}; what it printed says why")
    (place / "done").touch()


def jars(folder: Path, name: str) -> list[Path]:
    """Those of `spark` or of `broker`."""
    found = sorted((folder / name / "jars").glob("*.jar"))
    if not found:
        sys.exit(
            f"there are no jars in {folder / name}: run make bench-peers, or python -m benchmarks.peers.jars {folder}"
        )
    return found


if __name__ == "__main__":
    get(Path(sys.argv[1]).absolute())
