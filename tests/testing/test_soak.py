"""The short form of ``make soak``: real processes under real faults, and nothing in their history that must not be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support import REPOSITORY

SEED = 7
SECONDS = 30  # of faults; starting Spark before and catching up after take as long
BOUND_S = 1_450.0


@pytest.mark.spark
@pytest.mark.timeout(BOUND_S + 60)
def test_real_processes_under_real_faults_leave_no_anomaly_I1_I2_I5_I6_I7_I8_I9_I10_I11_I12_I14_I15_I16():
    command = [sys.executable, "-m", "tests.soak", "--short", "--seconds", str(SECONDS), "--seed", str(SEED)]
    run = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = run.communicate(timeout=BOUND_S)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)  # what it has started ends with it
            run.wait()
    assert run.returncode == 0, said[-8_000:]
    assert "No anomaly." in said
