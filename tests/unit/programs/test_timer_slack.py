"""Timer slack: processes started inside the block have it, and this process keeps its own."""

import subprocess
from pathlib import Path

import pytest

from vkgateway.api.errors import InputError
from vkgateway.planes.supervisor.running_process import timer_slack
from vkgateway.planes.supervisor.spec import ProcessSpec


def slack_of_a_child() -> int:
    return int(subprocess.run(["cat", "/proc/self/timerslack_ns"], capture_output=True, check=True).stdout)


@pytest.mark.skipif(not Path("/proc/self/timerslack_ns").exists(), reason="the kernel does not tell timer slack")
def test_children_started_in_the_block_have_the_timer_slack() -> None:
    before = slack_of_a_child()
    with timer_slack(0.02):
        assert slack_of_a_child() == 20_000_000
    assert slack_of_a_child() == before
    with timer_slack(0):
        assert slack_of_a_child() == before


@pytest.mark.parametrize("seconds", [-0.1, 1.5])
def test_invalid_timer_slack_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="timer slack"):
        ProcessSpec(name="x", argv=("x",), timer_slack=seconds)
