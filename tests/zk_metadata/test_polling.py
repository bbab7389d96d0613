"""The way to wait for sockets that replaces kazoo's own answers as that one does."""

from __future__ import annotations

import resource
import socket
import threading
import time

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler

from pyspark_ledger.zk_metadata.polling import PollingHandler


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@pytest.mark.parametrize("handler", [PollingHandler(), SequentialThreadingHandler()], ids=["ours", "kazoo's"])
def test_what_is_ready_is_told_and_nothing_else(pair, handler):
    one, other = pair
    assert handler.select([one, other], [], [], 0.01) == ([], [], [])
    one.send(b"x")
    assert handler.select([one, other], [], [], 5) == ([other], [], [])
    assert handler.select([], [one], [], 5) == ([], [one], [])
    one.close()
    assert handler.select([other], [], [], None) == ([other], [], [])


def test_it_waits_as_long_as_it_should_and_is_woken(pair):
    one, other = pair
    began = time.monotonic()
    assert PollingHandler().select([other], [], [], 0.05) == ([], [], [])
    assert time.monotonic() - began >= 0.05
    threading.Timer(0.05, one.send, [b"x"]).start()
    assert PollingHandler().select([other], [], [], 30) == ([other], [], [])
    assert time.monotonic() - began < 20


def test_a_process_with_many_open_files_is_no_problem():
    """select itself takes no socket with a number over 1,023."""
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(most, 1_200)), hard))
    pairs = [socket.socketpair() for _ in range(520)]
    try:
        one, other = pairs[-1]
        assert other.fileno() > 1_023
        one.send(b"x")
        assert PollingHandler().select([other], [], [], 5) == ([other], [], [])
    finally:
        for pair in pairs:
            for each in pair:
                each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
