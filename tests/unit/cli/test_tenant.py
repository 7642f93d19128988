"""Tests of the tenant and compute commands against a fake API server, whose statuses the tests write."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import stat
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.apiserver import FakeApiServer
from tests.support.machine import patience
from tests.support.waiting import wait_until
from vkgateway.api.objects import Meta
from vkgateway.api.times import parse_time
from vkgateway.api.types import (
    ApiServerAccess,
    ApiServerExposure,
    ComputeCluster,
    ComputeClusterSpec,
    Pool,
    Tenant,
    TenantControlPlane,
    TenantSpec,
)
from vkgateway.cli import main, tenant_create
from vkgateway.cli.compute import description_lines as compute_lines
from vkgateway.cli.progress import explain_interruption
from vkgateway.cli.tenant_describe import description_lines as tenant_lines
from vkgateway.kube import kubeconfig
from vkgateway.kube.resources import COMPUTE_CLUSTERS, NODES, SECRETS, TENANTS

API = "vkgateway.io/v1alpha1"
TYPES = ("Accepted", "ControlPlaneReady", "VirtualNodesReady", "Ready")


class Cli:
    """Command line against the fake server, in a separate thread because commands start an event loop."""

    def __init__(self, server: FakeApiServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.server = server
        self.folder = folder
        self.capsys = capsys
        self.out = self.err = ""
        document = {
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "users": [],
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "current-context": "c",
        }
        kubeconfig.write_file(folder / "compute.kubeconfig", document)

    async def __call__(self, *line: str) -> int:
        code = await asyncio.to_thread(main.run_command, ["--data-dir", str(self.folder), *line])
        self.out, self.err = self.capsys.readouterr()
        return code

    def set_status(self, name: str, *conditions: tuple[str, str, str, str]) -> None:
        found = self.server.store.get(TENANTS, name)
        made = [
            dict(zip(("type", "status", "reason", "message"), one, strict=True)) | {"observedGeneration": 1}
            for one in conditions
        ]
        status = {"observedGeneration": 1, "phase": "Ready", "conditions": made}
        self.server.store.update(TENANTS, found | {"status": status}, name=name, status=True)

    async def when_made(self, name: str, act: Callable[[], None]) -> None:
        """Act as the gateway when the tenant exists."""
        await wait_until(lambda: self.server.store.find(TENANTS, name) is not None, seconds=10)
        act()


def create_compute_cluster(server: FakeApiServer) -> None:
    """Create the compute cluster `local` with one pool, as a gateway reports it."""
    pools = [{"name": "a100", "nodeSelector": {"pool": "a100"}}]
    server.store.create(
        COMPUTE_CLUSTERS,
        {"apiVersion": API, "kind": "ComputeCluster", "metadata": {"name": "local"}, "spec": {"pools": pools}},
    )
    seen = [{"name": "a100", "nodes": 4, "usableNodes": 4, "allocatable": {"nvidia.com/gpu": "32"}}]
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"observedGeneration": 1, "version": "v1.36.3", "pools": seen, "conditions": conditions}
    found = server.store.get(COMPUTE_CLUSTERS, "local")
    server.store.update(COMPUTE_CLUSTERS, found | {"status": status}, name="local", status=True)


@pytest.fixture
async def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Cli]:
    async with FakeApiServer() as server:
        create_compute_cluster(server)
        yield Cli(server, tmp_path, capsys)


def all_true(cli: Cli, name: str) -> Callable[[], None]:
    return lambda: cli.set_status(name, *((kind, "True", kind, f"{kind} now") for kind in TYPES))


async def test_create_waits_and_reports_each_condition(cli: Cli) -> None:
    line = cli("tenant", "create", "alpha", "--pool", "a100:guarantee=nvidia.com/gpu=8")
    code, _ = await asyncio.gather(line, cli.when_made("alpha", all_true(cli, "alpha")))

    assert code == 0, cli.err
    assert cli.server.store.get(TENANTS, "alpha")["spec"] == {
        "pools": [{"name": "a100", "guarantee": {"nvidia.com/gpu": "8"}}]
    }
    for kind in TYPES[:3]:
        assert f"{kind}: {kind} now" in cli.err
    assert cli.out == ""


async def test_server_errors_are_retried(cli: Cli) -> None:
    cli.server.fail("GET", "/tenants/alpha", status=500, times=2).message = "etcdserver: revision of auth store is old"
    line = cli("tenant", "create", "alpha", "--pool", "a100")
    code, _ = await asyncio.gather(line, cli.when_made("alpha", all_true(cli, "alpha")))
    assert code == 0, cli.err


async def test_create_prints_the_object(cli: Cli) -> None:
    line = cli("tenant", "create", "alpha", "-o", "json")
    code, _ = await asyncio.gather(line, cli.when_made("alpha", all_true(cli, "alpha")))
    assert code == 0
    assert json.loads(cli.out)["metadata"]["name"] == "alpha"


@pytest.mark.parametrize(
    ("condition", "code", "words"),
    [
        (("Accepted", "False", "UnknownTemplate", "template 'big' does not exist"), 2, "'big'"),
        (("ControlPlaneReady", "False", "Impossible", "1.99.7 is not available"), 2, "1.99.7"),
        (("ControlPlaneReady", "False", "Taken", "port 6443 is in use"), 4, "6443"),
    ],
)
async def test_rejected_tenant_is_withdrawn(
    cli: Cli, condition: tuple[str, str, str, str], code: int, words: str
) -> None:
    line = cli("tenant", "create", "alpha")
    found, _ = await asyncio.gather(line, cli.when_made("alpha", lambda: cli.set_status("alpha", condition)))
    assert found == code
    assert words in cli.err
    assert cli.server.store.find(TENANTS, "alpha") is None


async def test_transient_failure_is_waited_for_until_timeout(cli: Cli) -> None:
    accepted = ("Accepted", "True", "Accepted", "it fits")
    failing = ("ControlPlaneReady", "False", "Unreachable", "etcd does not answer")
    line = cli("tenant", "create", "alpha", "--timeout", str(patience(1)))
    code, _ = await asyncio.gather(line, cli.when_made("alpha", lambda: cli.set_status("alpha", accepted, failing)))
    assert code == 5
    assert "etcd does not answer" in cli.err
    assert cli.server.store.find(TENANTS, "alpha") is not None


async def test_missing_gateway_is_reported_soon(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_create, "GATEWAY_WAIT_SECONDS", 0.3)
    assert await cli("tenant", "create", "alpha") == 5
    assert "the gateway has not reconciled tenant 'alpha'" in cli.err
    assert "vkgateway status" in cli.err
    assert cli.server.store.find(TENANTS, "alpha") is not None
    assert await cli("tenant", "list") == 0
    assert "not reconciled by the gateway yet" in cli.out


async def test_list_shows_why_tenant_is_not_ready(cli: Cli) -> None:
    await make(cli, "full")
    full = "the files of tenant 'full' cannot be written: No space left on device"
    cli.set_status("full", ("ControlPlaneReady", "False", "Unavailable", full), ("Ready", "False", "Unavailable", full))
    assert await cli("tenant", "list") == 0
    assert full in " ".join(cli.out.split())


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (("beta", "--pool", "h100"), 2, "available pools: a100"),
        (("beta", "--pool", "a100:guarantee=nvidia.com/gpu=33"), 2, "at most 32"),
        (("beta", "--pool", "a100.east"), 2, "available compute clusters: local"),
        (("Beta",), 2, "capital"),
        (("beta", "-f", "/nowhere.yaml"), 2, "/nowhere.yaml"),
        (("taken", "--pool", "a100"), 4, "already exists"),
    ],
)
async def test_invalid_input_is_refused_before_creation(cli: Cli, line: tuple[str, ...], code: int, words: str) -> None:
    cli.server.store.create(TENANTS, {"apiVersion": API, "kind": "Tenant", "metadata": {"name": "taken"}, "spec": {}})
    assert await cli("tenant", "create", *line) == code
    assert words in cli.err
    assert [one["metadata"]["name"] for one in cli.server.store.all(TENANTS)] == ["taken"]


async def test_dry_run_prints_manifest_and_creates_nothing(cli: Cli) -> None:
    assert await cli("tenant", "create", "alpha", "--pool", "a100", "--dry-run") == 0
    assert yaml.safe_load(cli.out) == {
        "apiVersion": API,
        "kind": "Tenant",
        "metadata": {"name": "alpha"},
        "spec": {"pools": [{"name": "a100"}]},
    }
    assert not cli.server.store.all(TENANTS)


async def make(cli: Cli, name: str = "alpha") -> None:
    cli.server.store.create(
        TENANTS,
        {"apiVersion": API, "kind": "Tenant", "metadata": {"name": name}, "spec": {"pools": [{"name": "a100"}]}},
    )
    all_true(cli, name)()


async def test_list_and_describe_show_tenants(cli: Cli) -> None:
    assert await cli("tenant", "list") == 0
    assert "There are no tenants" in cli.err
    await make(cli)
    assert await cli("tenant", "list") == 0
    assert cli.out.splitlines()[1].split()[:4] == ["alpha", "Ready", "1.36.3", "a100.local"]
    assert await cli("tenant", "list", "-o", "name") == 0
    assert cli.out == "alpha\n"
    assert await cli("tenant", "describe", "alpha") == 0
    assert "a100 of local" in cli.out
    assert "VirtualNodesReady   True" in cli.out
    assert await cli("tenant", "describe", "alpha", "-o", "yaml") == 0
    assert yaml.safe_load(cli.out)["metadata"]["name"] == "alpha"


async def test_describe_shows_cells(cli: Cli) -> None:
    pool = "a100:guarantee=nvidia.com/gpu=17,cells=2x8+1,weight=2.5"
    code, _ = await asyncio.gather(
        cli("tenant", "create", "alpha", "--pool", pool), cli.when_made("alpha", all_true(cli, "alpha"))
    )
    assert code == 0, cli.err
    made = cli.server.store.get(TENANTS, "alpha")["spec"]["pools"]
    assert made == [
        {"name": "a100", "guarantee": {"nvidia.com/gpu": "17"}, "weight": 2.5, "cells": [8, 8, 1]},
    ]
    assert await cli("tenant", "describe", "alpha") == 0
    assert "nvidia.com/gpu=17   2x8+1   -       2.5" in cli.out


async def test_budget_is_created_and_described(cli: Cli) -> None:
    budget = "resource=nvidia.com/gpu,hours="
    line = ("tenant", "create", "alpha", "--pool", "a100", "--budget", f"{budget}1234567.5")
    code, _ = await asyncio.gather(
        cli(*line, "--budget", f"{budget}0,pool=a100"), cli.when_made("alpha", all_true(cli, "alpha"))
    )
    assert code == 0, cli.err
    assert cli.server.store.get(TENANTS, "alpha")["spec"]["budget"] == [
        {"resource": "nvidia.com/gpu", "hours": 1234567.5},
        {"resource": "nvidia.com/gpu", "hours": 0.0, "pool": "a100"},
    ]
    assert await cli("tenant", "describe", "alpha") == 0
    assert "1234567.5 hours of nvidia.com/gpu, 0 hours of nvidia.com/gpu in pool a100" in cli.out


@pytest.mark.parametrize(
    ("budget", "complaint"),
    [
        ("resource=nvidia.com/gpu,hours=1,pool=v100", "has no pool 'v100'; its pools: a100"),
        ("resource=cpu,hours=1", "'cpu' has no hours"),
        ("nvidia.com/gpu=1", "for example resource=nvidia.com/gpu,hours=1000,pool=a100"),
    ],
)
async def test_budget_that_cannot_be_counted_is_refused(cli: Cli, budget: str, complaint: str) -> None:
    assert await cli("tenant", "create", "alpha", "--pool", "a100", "--budget", budget) == 2
    assert complaint in cli.err
    assert cli.server.store.find(TENANTS, "alpha") is None


def test_describe_shows_exposure_and_driver() -> None:
    access = ApiServerAccess(exposure=ApiServerExposure(type="NodePort", hostname="alpha.example.org"))
    spec = TenantSpec(api_server=access, control_plane=TenantControlPlane(driver="kubernetes"))
    lines = [" ".join(line.split()) for line in tenant_lines(Tenant(metadata=Meta(name="alpha"), spec=spec))]
    assert "Exposure: NodePort alpha.example.org" in lines
    assert "Driver: kubernetes" in lines
    inside = [" ".join(line.split()) for line in tenant_lines(Tenant(metadata=Meta(name="alpha")))]
    assert {"Exposure: -", "Driver: -"} <= set(inside)


async def test_unknown_names_exit_with_3_and_list_available(cli: Cli) -> None:
    await make(cli)
    for command in (("describe",), ("kubeconfig",), ("delete",)):
        assert await cli("tenant", *command, "beta") == 3
        assert "'beta'" in cli.err
        assert "alpha" in cli.err
    assert await cli("compute", "describe", "east") == 3


@pytest.mark.parametrize(
    "line", [("delete", "", "--yes", "--no-wait"), ("describe", ""), ("kubeconfig", "")], ids=lambda line: line[0]
)
async def test_empty_name_never_means_all_tenants(cli: Cli, line: tuple[str, ...]) -> None:
    await make(cli)
    assert await cli("tenant", *line) == 2
    assert "the name of a Tenant is empty" in cli.err
    assert await cli("tenant", "describe", "alpha") == 0


async def test_compute_clusters_are_shown(cli: Cli) -> None:
    assert await cli("compute", "list") == 0
    assert cli.out.splitlines()[1].split()[:5] == ["local", "Unknown", "True", "v1.36.3", "a100"]
    assert await cli("compute", "describe", "local") == 0
    assert "nvidia.com/gpu=32" in cli.out
    pool = Pool(name="a100", notice_seconds=60, brief_run_seconds=120, brief_notice_seconds=5, reserve="5%")
    found = ComputeCluster(metadata=Meta(name="east"), spec=ComputeClusterSpec(pools=(pool,)))
    shown = "\n".join(compute_lines(found))
    assert "60s, 5s for runs under 120s" in shown
    assert "  5%  " in shown


def give_kubeconfig(cli: Cli, name: str = "alpha") -> dict[str, Any]:
    document = kubeconfig.build_document(name, server="https://10.0.0.1:6443", ca="CA", cert="CERT", key="KEY")
    data = {"kubeconfig": base64.b64encode(kubeconfig.dump(document).encode()).decode()}
    secret = {"kind": "Secret", "metadata": {"name": f"tenant-{name}"}, "data": data}
    cli.server.store.create(SECRETS, secret, "vkgateway-system")
    return document


async def test_kubeconfig_is_printed_written_or_merged(cli: Cli, tmp_path: Path) -> None:
    await make(cli)
    document = give_kubeconfig(cli)
    assert await cli("tenant", "kubeconfig", "alpha") == 0
    assert yaml.safe_load(cli.out) == document

    file = tmp_path / "alpha.kubeconfig"
    assert await cli("tenant", "kubeconfig", "alpha", "-f", str(file)) == 0
    assert yaml.safe_load(file.read_text()) == document
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    mine = tmp_path / "mine"
    kubeconfig.write_file(mine, kubeconfig.build_document("work", server="https://x", ca="CA", token="t"))
    assert await cli("tenant", "kubeconfig", "alpha", "-f", str(mine), "--merge", "--no-switch") == 0
    merged = yaml.safe_load(mine.read_text())
    assert [one["name"] for one in merged["contexts"]] == ["work", "alpha"]
    assert merged["current-context"] == "work"


async def test_repeated_create_continues_with_the_same_spec_only(cli: Cli) -> None:
    await make(cli)
    uid = cli.server.store.get(TENANTS, "alpha")["metadata"]["uid"]
    assert await cli("tenant", "create", "alpha", "--pool", "a100") == 0, cli.err
    assert "tenant alpha exists already, with this spec" in cli.err
    assert cli.server.store.get(TENANTS, "alpha")["metadata"]["uid"] == uid
    assert await cli("tenant", "create", "alpha", "--pool", "a100", "--storage-class", "slow") == 4
    assert "already exists, with another spec" in cli.err
    assert "vkgateway tenant set alpha" in cli.err


async def test_create_lists_the_tenants_once(cli: Cli) -> None:
    assert await cli("tenant", "create", "alpha", "--pool", "a100", "--dry-run") == 0
    assert [request for request in cli.server.requests if request.partition("?")[0].endswith("/tenants")] == [
        "GET /apis/vkgateway.io/v1alpha1/tenants"
    ]


async def test_dry_run_for_an_equal_tenant_says_so(cli: Cli) -> None:
    await make(cli)
    assert await cli("tenant", "create", "alpha", "--pool", "a100", "--dry-run") == 0, cli.err
    assert "tenant alpha exists already, with this spec" in cli.err
    assert yaml.safe_load(cli.out)["spec"] == {"pools": [{"name": "a100"}]}


def hold(cli: Cli, name: str = "alpha") -> None:
    """Begin the deletion of a tenant; a finalizer keeps it."""
    found = cli.server.store.get(TENANTS, name)
    held = found | {"metadata": found["metadata"] | {"finalizers": ["vkgateway.io/tenant"]}}
    cli.server.store.update(TENANTS, held, name=name)
    cli.server.store.delete(TENANTS, name)


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--storage-class", "slow")])
async def test_create_while_the_tenant_is_being_deleted_says_so(cli: Cli, more: tuple[str, ...]) -> None:
    await make(cli)
    hold(cli)
    assert await cli("tenant", "create", "alpha", "--pool", "a100", *more) == 4
    assert "tenant 'alpha' is being deleted" in cli.err
    assert "another spec" not in cli.err


REFUSED = ("Accepted", "False", "GuaranteeBeyondPool", "the nodes have no place for the cells")


@pytest.mark.parametrize("line", [("create", "alpha", "--pool", "a100", "--no-wait"), ("wait", "alpha")])
async def test_existing_tenant_that_is_not_accepted_is_never_deleted(cli: Cli, line: tuple[str, ...]) -> None:
    await make(cli)
    cli.set_status("alpha", REFUSED)
    assert await cli("tenant", *line) == 2
    assert "the nodes have no place" in cli.err
    assert "deleted again" not in cli.err
    assert cli.server.store.find(TENANTS, "alpha") is not None


async def test_wait_reports_an_unacceptable_tenant_and_changes_nothing(cli: Cli) -> None:
    await make(cli)
    assert await cli("tenant", "wait", "alpha", "--timeout", "60") == 0, cli.err
    assert "tenant alpha is ready" in cli.err
    assert await cli("tenant", "wait", "beta") == 3


async def test_interruption_says_what_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    async def command() -> None:
        with explain_interruption("The gateway goes on."):
            await asyncio.sleep(3600)

    task = asyncio.create_task(command())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert capsys.readouterr().err == "The gateway goes on.\n"


async def test_missing_kubeconfig_is_an_error(cli: Cli) -> None:
    await make(cli)
    assert await cli("tenant", "kubeconfig", "alpha") == 5
    assert "is being created" in cli.err


async def test_delete_waits_until_tenant_is_deleted(cli: Cli) -> None:
    await make(cli)
    assert await cli("tenant", "delete", "alpha", "--yes") == 0
    assert "tenant alpha is deleted" in cli.err
    assert not cli.server.store.all(TENANTS)


async def test_data_of_a_deleted_tenant_is_kept_until_it_is_restored(cli: Cli) -> None:
    await make(cli)
    before = datetime.now(UTC) + timedelta(days=7)
    assert await cli("tenant", "delete", "alpha", "--keep", "7d", "--no-wait", "--yes") == 0
    after = parse_time(cli.server.store.get(TENANTS, "alpha")["spec"]["deleteAfter"])
    assert timedelta(seconds=-1) < after - before < timedelta(minutes=5)
    assert await cli("tenant", "create", "alpha", "--pool", "a100") == 4
    assert "vkgateway tenant restore alpha" in cli.err
    assert await cli("tenant", "restore", "alpha", "--no-wait") == 0
    assert "deleteAfter" not in cli.server.store.get(TENANTS, "alpha")["spec"]


async def test_only_a_tenant_whose_data_is_kept_can_be_restored(cli: Cli) -> None:
    await make(cli)
    assert await cli("tenant", "restore", "alpha") == 4
    assert "'alpha' is not deleted" in cli.err
    assert await cli("tenant", "restore", "nobody") == 3


async def test_protected_tenant_is_not_deleted(cli: Cli) -> None:
    await make(cli)
    await make(cli, "beta")
    found = cli.server.store.get(TENANTS, "beta")
    cli.server.store.update(TENANTS, found | {"spec": {"deletionProtection": True}}, name="beta")
    assert await cli("tenant", "delete", "alpha", "beta") == 4, "before it asks"
    assert "protected from deletion by spec.deletionProtection: beta; no tenant was deleted" in cli.err
    assert "vkgateway tenant set beta --no-deletion-protection" in cli.err
    assert len(cli.server.store.all(TENANTS)) == 2
    assert await cli("tenant", "describe", "beta") == 0
    assert "protected" in cli.out


async def test_protected_tenant_that_is_not_accepted_is_withdrawn(cli: Cli) -> None:
    """The cluster refuses to delete it while it is protected."""
    line = cli("tenant", "create", "alpha", "--deletion-protection")
    code, _ = await asyncio.gather(line, cli.when_made("alpha", lambda: cli.set_status("alpha", REFUSED)))
    assert code == 2
    requests = [request.partition(" ")[0] for request in cli.server.requests if "/tenants/alpha" in request]
    assert requests[-2:] == ["PATCH", "DELETE"]
    assert cli.server.store.find(TENANTS, "alpha") is None


@pytest.mark.parametrize("answer", ["n", "y", ""])
async def test_delete_without_a_terminal_needs_yes_whatever_the_input_says(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    await make(cli)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    assert await cli("tenant", "delete", "alpha") == 2
    assert "would delete the tenants alpha with all their data" in cli.err
    assert "--yes" in cli.err
    assert cli.server.store.all(TENANTS)


async def test_delete_reports_remaining_tenants_after_timeout(cli: Cli) -> None:
    await make(cli)
    hold(cli)
    assert await cli("tenant", "delete", "alpha", "--yes", "--timeout", "1") == 5
    assert "not deleted after 1 s: alpha" in cli.err


@pytest.mark.parametrize("command", [("tenant", "list"), ("tenant", "describe", "alpha"), ("compute", "list")])
async def test_kubeconfig_of_a_tenant_is_refused(cli: Cli, command: tuple[str, ...]) -> None:
    cli.server.store.create(NODES, {"metadata": {"name": "a100.local", "labels": {"vkgateway.io/pool": "a100"}}})
    for resource in (TENANTS, COMPUTE_CLUSTERS):
        cli.server.unregister(resource)
    assert await cli(*command) == 2
    assert f"{cli.server.url} is a tenant's, and has no" in cli.err
    assert "VKGATEWAY_KUBECONFIG" in cli.err


async def test_missing_definitions_are_an_error(cli: Cli) -> None:
    cli.server.fail("GET", "/tenants", status=404, reason="NotFound", times=2)
    assert await cli("tenant", "list") == 5
    assert "does not serve tenants" in cli.err
