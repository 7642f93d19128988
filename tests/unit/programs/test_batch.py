"""Batch scheduling: what is started inside the block has it, and this process goes on as it was."""

import os
import subprocess
import sys

import pytest

from vkgateway.programs.supervisor.batch_scheduling import batch_scheduling


def policy_of_a_child() -> int:
    """The policy of a thread of a child, which it inherits twice."""
    code = "import os, threading; threading.Thread(target=lambda: print(os.sched_getscheduler(0))).start()"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


def test_children_of_the_block_wait_for_their_turn_and_later_ones_do_not() -> None:
    before = policy_of_a_child()
    with batch_scheduling(on=True):
        assert policy_of_a_child() == os.SCHED_BATCH
    assert policy_of_a_child() == os.sched_getscheduler(0) == before


def test_without_it_nothing_changes() -> None:
    before = os.sched_getscheduler(0)
    with batch_scheduling(on=False):
        assert policy_of_a_child() == before


def test_where_it_is_not_allowed_processes_start_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with batch_scheduling(on=True):
        assert policy_of_a_child() == os.sched_getscheduler(0)
