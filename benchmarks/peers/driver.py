"""A Spark job in a process of its own, which can be killed, and whose memory is nobody else's:
`python -m benchmarks.peers.driver '{"job": …}'`. It ends with whoever started it.

Jobs: `pace` writes rows at a fixed rate until it is killed; `write` and `read` carry all rows once, and end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from benchmarks.peers.systems import Place, system_at

TERMINATED = 143  # the status of a process that SIGTERM has ended


def leave_on_sigterm() -> None:
    """So that servers are ended and folders removed then, too."""

    def leave(*_: object) -> None:
        raise SystemExit(TERMINATED)

    signal.signal(signal.SIGTERM, leave)


class Job:
    """The process, as its parent sees it. It leads a process group, which is killed as a whole."""

    def __init__(self, log: Path, command: list[str], environment: dict[str, str] | None = None) -> None:
        self._log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to the Python process and the JVM at once; their workers end with them."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        """Kills it if it is still there."""
        if self.process.poll() is None:
            self.kill()

    def finish(self, seconds: float) -> None:
        """Waits for its end."""
        try:
            if self.process.wait(seconds):
                self.fail("failed")
        except subprocess.TimeoutExpired:
            self.kill()
            self.fail(f"was not done after {seconds:g} s")

    def check(self) -> None:
        """Fails if it has ended by itself."""
        if self.process.poll() is not None:
            self.fail("ended")

    def fail(self, what: str) -> None:
        raise SystemExit(f"the job of its own {what}:\n{self._log.read_text(errors='replace')[-4000:]}")


def driver(log: Path, **words: Any) -> Job:
    """This module in a process of its own."""
    return Job(log, [sys.executable, "-m", "benchmarks.peers.driver", json.dumps(words)])


def main() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    words = json.loads(sys.argv[1])
    from benchmarks import data
    from benchmarks.peers.pace import Pace
    from benchmarks.peers.stage import settings
    from benchmarks.session import drain, session

    system, work = system_at(Place(**words["place"])), Path(words["work"])
    with session(work, **settings([Path(jar) for jar in words["jars"]])) as spark:
        spark.dataSource.register(Pace)
        checkpoint = work / f"checkpoint-{words['job']}"
        if words["job"] == "pace":
            options = {"rate": words["rate"], "startedAt": words["started_at"], "rows": 2**62}
            frame = system.packed(spark.readStream.format("pace").options(**options).load())
            sink = frame.writeStream.format(system.format).options(**system.sink)
            sink.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
        elif words["job"] == "write":
            frame = system.packed(data.parquet_stream(spark, Path(words["input"])))
            drain(frame, system.format, checkpoint, system.sink)
        else:
            drain(system.stream(spark), "noop", checkpoint)


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would be held when Python ends
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
