"""Shell completion offers the names in the clusters of a command, and nothing without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from tests.fakes.apiserver import FakeApiServer
from vkgateway.cli import main
from vkgateway.kube import kubeconfig
from vkgateway.kube.resources import COMPUTE_CLUSTERS, PODS, TENANTS

API = "vkgateway.io/v1alpha1"


def write_kubeconfig(server: FakeApiServer, file: Path) -> None:
    document = {
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "current-context": "c",
    }
    kubeconfig.write_file(file, document)


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    """Yield the data directory of a platform with two tenants, two clusters and the kubeconfig of a tenant."""
    async with FakeApiServer() as management, FakeApiServer() as tenant:
        for name in ("alpha", "beta"):
            metadata = {"name": name}
            management.store.create(TENANTS, {"apiVersion": API, "kind": "Tenant", "metadata": metadata, "spec": {}})
        for name, pool in (("local", "a100"), ("berlin", "h100")):
            spec = {"pools": [{"name": pool, "nodeSelector": {"pool": pool}}]}
            document = {"apiVersion": API, "kind": "ComputeCluster", "metadata": {"name": name}, "spec": spec}
            management.store.create(COMPUTE_CLUSTERS, document)
        for namespace, name in (("default", "web-0"), ("research", "train-0")):
            pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
            tenant.store.create(PODS, pod, namespace=namespace)
        tenant.fail("GET", "/apis/vkgateway.io", status=404, times=100)  # it is not the management cluster
        write_kubeconfig(management, tmp_path / "compute.kubeconfig")
        write_kubeconfig(tenant, tmp_path / "alpha.kubeconfig")
        yield tmp_path


async def complete(folder: Path, *words: str, begun: str = "") -> list[str]:
    """Return the completions of a word, read in a thread: they start an event loop."""
    shell = ShellComplete(main.cli, {}, "vkgateway", "_VKGATEWAY_COMPLETE")
    given = [word.replace("FOLDER", str(folder)) for word in ("--data-dir", str(folder), *words)]
    return [one.value for one in await asyncio.to_thread(shell.get_completions, given, begun)]


@pytest.mark.parametrize(
    ("words", "begun", "completed"),
    [
        (["tenant", "describe"], "", ["alpha", "beta"]),
        (["tenant", "set"], "b", ["beta"]),
        (["tenant", "delete", "alpha"], "", ["beta"]),
        (["ui", "--tenant"], "", ["alpha", "beta"]),
        (["tenant", "describe", "--kubeconfig", "FOLDER/alpha.kubeconfig"], "", []),
        (["compute", "describe"], "", ["berlin", "local"]),
        (["tenant", "create", "gamma", "--pool"], "", ["a100", "h100.berlin"]),
        (["whatif", "grow"], "h", ["h100.berlin"]),
        (["explain", "--kubeconfig", "FOLDER/alpha.kubeconfig"], "", ["web-0"]),
        (["explain", "--kubeconfig", "FOLDER/alpha.kubeconfig", "-n", "research"], "", ["train-0"]),
        (["explain"], "", []),
    ],
)
async def test_names_in_the_clusters_are_completed(
    folder: Path, words: list[str], begun: str, completed: list[str]
) -> None:
    assert await complete(folder, *words, begun=begun) == completed


async def test_nothing_is_completed_without_a_platform(tmp_path: Path) -> None:
    assert await complete(tmp_path, "tenant", "describe") == []
