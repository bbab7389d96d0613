"""A process that forks, or ends, while its producers have records that wait."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

BEGIN = """
import atexit, os, sys, time
from pathlib import Path
from pyspark_ledger.errors import LedgerError
from tests.support.producers import NEVER_BY_ITSELF, Process, numbers
from tests.support.worlds import World

world = World(Path(sys.argv[1]))
"""


def run(folder, program: str) -> subprocess.CompletedProcess[str]:
    code = BEGIN + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("background", ["NEVER_BY_ITSELF", "None"], ids=["lingers", "does not"])
def test_a_forked_child_is_refused_and_writes_nothing_of_its_parent_which_goes_on_I1_I6(tmp_path, background):
    done = run(
        tmp_path,
        f"""
        process = Process(world, "p", {background})
        receipt = process.producer.send({{"n": 1}})
        process.producer._delivery.lock.acquire()  # as if another thread had it at this moment
        child = os.fork()
        if not child:
            producer = process.producer
            send = lambda: producer.send({{"n": 2}})
            for call in (send, producer.flush, receipt.result, producer.discard, producer.close):
                try:
                    call()
                except LedgerError as error:
                    print(error.code, flush=True)
            producer.__exit__(ValueError)
            sys.exit()  # as a child that ends like any other process
        process.producer._delivery.lock.release()
        assert os.waitpid(child, 0)[1] == 0
        process.producer.send({{"n": 3}})
        process.producer.close()
        print(numbers(world), receipt.result().sequence_id)
        """,
    )
    assert done.stdout.splitlines() == ["LEDGER_FORKED"] * 5 + ["[1, 3] 0"]
    assert done.stderr == ""


def test_a_process_that_ends_stores_what_waits_I1(tmp_path):
    done = run(
        tmp_path,
        """
        atexit.register(lambda: print(numbers(world)))
        process = Process(world, None, NEVER_BY_ITSELF)
        for number in range(3):
            process.producer.send({"n": number})
        """,
    )
    assert (done.stdout, done.stderr) == ("[0, 1, 2]\n", "")


@pytest.mark.parametrize(
    ("background", "down"), [("NEVER_BY_ITSELF", True), ("None", False)], ids=["cannot be stored", "not flushed"]
)
def test_a_process_that_ends_says_how_many_records_are_lost_and_does_not_hang_I14(tmp_path, background, down):
    done = run(
        tmp_path,
        f"""
        from pyspark_ledger.append import leaving
        leaving.EXIT_S = 0.3
        process = Process(world, None, {background})
        for number in range(3):
            process.producer.send({{"n": number}})
        process.zookeeper.down = {down}
        """,
    )
    assert "the process ends, and 3 records are lost" in done.stderr


def test_a_process_that_ends_says_how_many_were_given_up_if_nobody_has_heard_of_it_I14(tmp_path):
    done = run(
        tmp_path,
        """
        from pyspark_ledger.lifecycle import termination
        unheard, heard = Process(world, None, NEVER_BY_ITSELF), Process(world, None, NEVER_BY_ITSELF)
        for number in range(3):
            unheard.producer.send({"n": number})
        heard.producer.send({"n": 3})
        termination.terminate(world.log())
        try:
            heard.producer.flush()
            heard.producer.send({"n": 4})
        except LedgerError as error:
            print(error.code)
        """,
    )
    assert done.stdout == "LEDGER_TOPIC_TERMINATED\n"
    assert done.stderr.count("records are lost") == 1
    assert "3 records are lost that were sent to topic 't' and not stored (topic 't' was terminated" in done.stderr


def test_who_left_with_an_exception_or_discarded_is_not_told_of_loss(tmp_path):
    done = run(
        tmp_path,
        """
        one, two = Process(world), Process(world, None, NEVER_BY_ITSELF)
        for producer in (one.producer, two.producer):
            producer.send({"n": 1})
        one.producer.discard()
        two.producer.__exit__(ValueError)
        """,
    )
    assert done.stderr == ""
