"""The demo, run twice on a platform that already has its tenants, the second time with the objects of the first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, CommandResult, Platform, run_program

pytestmark = pytest.mark.embedded_gateway(reason="the demo starts the embedded gateway")
SCRIPT = Path(__file__).parents[2] / "scripts" / "demo.py"


def demo(platform: Platform, kubeconfigs: Path) -> CommandResult:
    return run_program(
        sys.executable,
        str(SCRIPT),
        f"--data-dir={platform.data_dir}",
        f"--kubeconfigs={kubeconfigs}",
        timeout=300,
    )


def last_lines(text: str, *, amount: int = 60) -> str:
    return "\n".join(text.splitlines()[-amount:])


def test_demo_can_be_repeated(platform: Platform, alpha: Cluster, beta: Cluster, tmp_path: Path) -> None:
    first, second = demo(platform, tmp_path), demo(platform, tmp_path)

    for answer in (first, second):
        assert answer.code == 0, f"exit code {answer.code}\n{answer.err}\n{last_lines(answer.out)}"
        assert "Traceback" not in answer.out + answer.err
    output = second.out
    for tenant in ("alpha", "beta"):
        assert f"{tenant}$ kubectl rollout status deployment/web" in output
        assert f"export KUBECONFIG={tmp_path}/{tenant}.kubeconfig" in output
    assert "job.batch/train condition met" in output
    assert "s: the gang of alpha runs" in output
    assert "PreemptionByVkgateway" in output
    if platform.real:
        assert "shell says hello" in output
        assert output.count("changed-at-") >= 3  # asked for, waited for, seen
    assert "vkgateway down" in output
    for cluster in (alpha, beta):
        cluster.kubectl("delete", "namespace", "demo", "--wait", timeout=90)
