"""The pod of `helm test`: its command, and permissions that suffice for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chart.conftest import Helm
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from tests.unit.cli.test_check import RUNNING, Installation, installed_tenant
from tests.unit.cli.test_tenant import Cli, create_compute_cluster
from vkgateway.cli.check import TENANT
from vkgateway.kube.resources import TENANTS


async def test_the_permissions_of_helm_test_suffice(
    helm: Helm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = helm.render("--set=test.pool=a100,test.image=pause:1")
    rights = Rights(one for one in objects.all if one["metadata"]["name"] == "vkgateway-test" and "rules" in one)
    (pod,) = objects.kinds("Pod")
    arguments = pod["spec"]["containers"][0]["args"]
    async with FakeApiServer(rights=rights) as management, FakeApiServer() as tenant:
        create_compute_cluster(management)
        cli = Cli(management, tmp_path, capsys)
        installation = Installation(cli, tenant)
        installed_tenant(management, tenant)
        code, _ = await asyncio.gather(cli(*arguments), installation.serve(RUNNING))
        assert code == 0, cli.err
        assert management.store.find(TENANTS, TENANT) is None
    assert installation.pods[0]["spec"]["containers"][0]["image"] == "pause:1"


def test_only_the_pod_is_a_test(helm: Helm) -> None:
    """`helm test --logs` reads the log of a pod for each object that is a test."""
    objects = helm.render()
    hooks = [one for one in objects.all if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    assert [one["kind"] for one in hooks] == ["Pod"]
    assert hooks[0]["metadata"]["annotations"]["helm.sh/hook"] == "test"
    disabled = helm.render("--set=test.enabled=false").all
    assert not [one for one in disabled if one["metadata"]["name"] == "vkgateway-test"]
