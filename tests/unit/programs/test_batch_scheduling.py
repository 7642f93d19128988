"""Batch scheduling: processes started inside the block use it, and this process does not."""

import os
import subprocess
import sys

import pytest

from vkgateway.planes.supervisor.running_process import batch_scheduling


def policy_of_a_child() -> int:
    """Return the policy of a thread in a child, which inherits it twice."""
    code = "import os, threading; threading.Thread(target=lambda: print(os.sched_getscheduler(0))).start()"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


def test_children_started_in_the_block_use_batch_scheduling() -> None:
    before = policy_of_a_child()
    with batch_scheduling(on=True):
        assert policy_of_a_child() == os.SCHED_BATCH
    assert policy_of_a_child() == os.sched_getscheduler(0) == before


def test_nothing_changes_if_it_is_off() -> None:
    before = os.sched_getscheduler(0)
    with batch_scheduling(on=False):
        assert policy_of_a_child() == before


def test_processes_start_without_permission_for_batch_scheduling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with batch_scheduling(on=True):
        assert policy_of_a_child() == os.sched_getscheduler(0)
