"""Tests of support bundles: what they contain, and that they contain no secret, wherever it is planted."""

from __future__ import annotations

import io
import json
import stat
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.unit.cli.gateway import gang, pool, tenant
from tests.unit.cli.plugin.canaries import Canaries
from tests.unit.cli.plugin.tool import ReviewingApiServer, Tool, node, pod, put, put_nodes, rights, running, waits
from vkgateway.cli.plugin.bundle.archive import BundleFile, IndexEntry, without_secrets
from vkgateway.kube.resources import (
    COMPUTE_CLUSTERS,
    CONFIG_MAPS,
    EVENTS,
    LEASES,
    PODS,
    SECRETS,
    TENANTS,
    Resource,
)
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport
from vkgateway.serve.health import HealthServer

WEBHOOKS = tuple(
    Resource("apis/admissionregistration.k8s.io/v1", plural, kind, namespaced=False)
    for plural, kind in (
        ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
        ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    )
)


@pytest.fixture
def canaries() -> Canaries:
    return Canaries()


def read_bundle(data: bytes) -> dict[str, str]:
    """Return the files of a bundle without their folder."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }


async def report(tool: Tool, *options: str) -> dict[str, str]:
    """Run the command, and return the files of the bundle."""
    file = tool.folder / f"bundle-{len(list(tool.folder.glob('bundle-*')))}.tar.gz"
    assert await tool("report", "-o", str(file), *options) == 0, tool.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return read_bundle(file.read_bytes())


def plant_tenant(server: ReviewingApiServer, canaries: Canaries) -> None:
    """Create objects of a tenant with canaries everywhere."""
    for kind in WEBHOOKS:
        server.register(kind)
        put(server, canaries.webhooks("hooks"), resource=kind)
    put_nodes(server, canaries.node())
    put(server, canaries.pod("runs"), canaries.pod("waits", waiting=True))
    put(server, canaries.data("settings") | {"metadata": {"name": "settings", "namespace": "ns"}}, resource=CONFIG_MAPS)
    put(server, canaries.data("secret") | {"metadata": {"name": "secret", "namespace": "ns"}}, resource=SECRETS)
    for event in (
        canaries.event("runs", "Failed"),
        canaries.event("runs", "FailedScheduling", component="default-scheduler"),
        canaries.event("runs", "ForwardingRefused", component="vkgateway"),
        canaries.event("waits", "Invalid", component="vkgateway"),
        canaries.event("other", "Failed"),
        canaries.event("a100.local", "NodeNotReady", kind="Node"),
    ):
        server.store.create(EVENTS, event, "ns")


@pytest.mark.parametrize("options", [(), ("--include-messages",)])
async def test_tenant_bundle_contains_no_canary(
    tool: Tool,
    server: ReviewingApiServer,
    canaries: Canaries,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    server.token = canaries.plant("token of the kubeconfig")
    tool.use(monkeypatch, server.url, token=server.token)
    plant_tenant(server, canaries)
    files = await report(tool, *options)
    assert not [name for name in ("pods.json", "events.json", "webhooks.json", "nodes.json") if name not in files]
    everything = "\n".join((*files, *files.values(), tool.out, tool.err))
    leaked = canaries.found_in(everything)
    asked_for = {place for place in canaries.places.values() if is_message(place)} if options else set()
    assert set(leaked) <= asked_for


def is_message(place: str) -> bool:
    """Return whether a place is free text that the user asked for, and not in a known form of a secret."""
    return place.startswith(("condition", "status message", "pending message"))


async def test_tenant_bundle_contains_what_support_needs(tool: Tool, server: ReviewingApiServer) -> None:
    put_nodes(server, node())
    message = "needs 2 pods of nvidia.com/gpu 8; 0 of 2 would fit now; place 2 in a100.local; expected start not known"
    put(server, running("runs"), pod("waits", status=waits(message)), running("plain", spec={"containers": []}))
    event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "waits"}, "reason": "WaitingForRoom"}
    server.store.create(EVENTS, event | {"message": message, "source": {"component": "vkgateway"}}, "ns")
    files = await report(tool)
    index = json.loads(files["index.json"])
    assert (index["kind"], index["messages"]) == ("tenant", False)
    listed = {entry["file"]: entry for entry in index["files"]}
    assert {name for name, entry in listed.items() if "problem" not in entry} | {"index.json"} == set(files)
    assert listed["webhooks.json"]["problem"].startswith("NotFound")
    pods = json.loads(files["pods.json"])
    assert [found["metadata"]["name"] for found in pods] == ["runs", "waits"], "governed pods only"
    assert pods[1]["status"]["conditions"][0]["message"] == message
    assert pods[0]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert json.loads(files["gangs.json"])[0]["place"] == 2
    assert json.loads(files["quota.json"])[0]["used"] == 8
    assert json.loads(files["events.json"])[0]["message"] == message
    assert json.loads(files["nodes.json"])[0]["status"]["allocatable"]["nvidia.com/gpu"] == "16"
    assert json.loads(files["status.json"])["cluster"]["user"] == "jane"
    assert json.loads(files["client.json"])["credentials"] == []


async def test_bundle_with_few_rights_lists_what_is_missing(tool: Tool, server: ReviewingApiServer) -> None:
    for kind in WEBHOOKS:
        server.register(kind)
    server.rights = rights("ns", pods="get list")
    put(server, running("runs"), running("else") | {"metadata": {"name": "else", "namespace": "other"}})
    files = await report(tool)
    problems = {entry["file"]: entry.get("problem", "") for entry in json.loads(files["index.json"])["files"]}
    assert "user 'jane' cannot list nodes" in problems["nodes.json"]
    steps = {entry["file"]: entry.get("steps", []) for entry in json.loads(files["index.json"])["files"]}
    assert steps["nodes.json"][0] == "Check: kubectl auth can-i list nodes"
    assert "cannot list events in namespace 'ns'" in problems["events.json"]
    assert "cannot list validatingwebhookconfigurations" in problems["webhooks.json"]
    assert problems["pods.json"] == ""
    assert [found["metadata"]["name"] for found in json.loads(files["pods.json"])] == ["runs"]
    assert "Not in it: nodes.json" in tool.err


async def test_existing_file_is_not_replaced(tool: Tool, server: ReviewingApiServer) -> None:
    file = tool.folder / "there"
    file.write_text("mine")
    assert await tool("report", "-o", str(file)) == 4
    assert (file.read_text(), "exists" in tool.err) == ("mine", True)


async def test_default_name_has_the_time(
    tool: Tool, server: ReviewingApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tool.folder)
    assert await tool("report") == 0
    assert len(list(tool.folder.glob("vkgateway-report-20*T*Z.tar.gz"))) == 1


def test_file_with_a_credential_is_left_out() -> None:
    files = [BundleFile(entry=IndexEntry(file="a", content=""), text="x t0ken y")]
    (found,) = without_secrets(files, ["", "t0ken"])
    assert (found.text, found.entry.problem) == (None, "it would contain a credential")


@asynccontextmanager
async def management(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, state: ArbiterReport, log: str
) -> AsyncIterator[ReviewingApiServer]:
    """Yield a management cluster whose gateway runs on this machine, with its log."""
    socket = tool.folder / "said.sock"
    health = HealthServer(
        address="127.0.0.1",
        port=0,
        checks={},
        state=lambda: msgspec.json.encode(state),
        usage=lambda *_: b'{"days": [], "budgets": []}',
        socket=socket,
    )
    async with ReviewingApiServer() as server, health:
        (tool.folder / "gateway.yaml").write_text(yaml.safe_dump({"observability": {"socket": str(socket)}}))
        file = tool.use(monkeypatch, server.url)
        (tool.folder / "compute.kubeconfig").write_text(file.read_text())
        write_log(tool.folder, log)
        yield server


def write_log(folder: Path, text: str) -> None:
    from vkgateway.planes.supervisor.spec import SupervisorPaths

    path = SupervisorPaths(folder).log_path("gateway")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def test_management_bundle_contains_no_canary(
    tool: Tool, canaries: Canaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ArbiterReport(
        pools=(pool(),),
        tenants=(tenant("alpha"), tenant("beta")),
        gangs=(
            gang("alpha/ns/gang/x", code="Invalid", message=canaries.plant("message of a gang")),
            gang("beta/ns/gang/y"),
        ),
    )
    log = "\n".join(
        (
            f'{{"event": "event not written", "error": "{canaries.plant("error in the log")}", "tenant": "alpha"}}',
            f"2026-11-26T10:00:00Z [warning  ] stream refused key={canaries.plant('console log')} tenant=alpha",
            f"ValueError: {canaries.plant('traceback')}",
        )
    )
    async with management(tool, monkeypatch, state, log) as server:
        plant_management(server, canaries)
        files = await report(tool)
        assert not canaries.found_in("\n".join((*files, *files.values(), tool.out, tool.err)))
        problems = [entry for entry in json.loads(files["index.json"])["files"] if "problem" in entry]
        assert problems == []
        assert {found["name"] for found in spec_pools(files)} == {"a100"}
        assert "python_info" in files["gateway-metrics.txt"]
        assert '"stream refused"' in files["gateway.log"]
        assert len(json.loads(files["gateway-state.json"])["gangs"]) == 2
        assert [found["metadata"]["name"] for found in json.loads(files["control-plane-pods.json"])] == ["plane"]

        only_alpha = await report(tool, "--tenant", "alpha")
        assert [found["metadata"]["name"] for found in json.loads(only_alpha["tenants.json"])] == ["alpha"]
        assert [found["tenant"] for found in json.loads(only_alpha["gateway-state.json"])["gangs"]] == ["alpha"]


def spec_pools(files: dict[str, str]) -> Any:
    return json.loads(files["compute-clusters.json"])[0]["spec"]["pools"]


def plant_management(server: ReviewingApiServer, canaries: Canaries) -> None:
    """Create objects of a management cluster with canaries everywhere."""
    for kind in WEBHOOKS:
        server.register(kind)
        put(server, canaries.webhooks("hooks"), resource=kind)
    put_nodes(server, canaries.node("machine"))
    condition = {"type": "Ready", "status": "False", "reason": "Failed"}
    for name in ("alpha", "beta"):
        exposure = {"type": "LoadBalancer", "annotations": {"key": canaries.plant("exposure annotation")}}
        put(
            server,
            {
                "metadata": {"name": name, **canaries.metadata("a Tenant")},
                "spec": {"apiServer": {"exposure": exposure}, "extra": canaries.plant("unknown field")},
                "status": {
                    "conditions": [condition | {"message": canaries.plant("condition of a Tenant")}],
                    "apiServer": {"url": f"https://host:6443/{canaries.plant('path of the API server')}"},
                },
            },
            resource=TENANTS,
        )
    scheduling = {
        "podLabels": {"k": canaries.plant("pod label")},
        "podAnnotations": {"k": canaries.plant("annotation")},
    }
    compute = {
        "metadata": {"name": "local", **canaries.metadata("a ComputeCluster")},
        "spec": {"pools": [{"name": "a100", "scheduling": scheduling}]},
        "status": {"conditions": [condition | {"message": canaries.plant("condition of a ComputeCluster")}]},
    }
    put(server, compute, resource=COMPUTE_CLUSTERS)
    system = "vkgateway-system"
    for name in ("gateway-0", "plane"):
        made = canaries.pod(name, namespace=system)
        if name == "plane":
            made["metadata"]["labels"]["vkgateway.io/control-plane"] = "alpha"
        put(server, made, resource=PODS)
    for kind, name in ((SECRETS, "tenant-alpha"), (CONFIG_MAPS, "vkgateway")):
        server.store.create(kind, canaries.data(name), system)
    lease = {"metadata": {"name": "gateway", **canaries.metadata("a Lease")}, "spec": {"holderIdentity": "gateway-0/1"}}
    server.store.create(LEASES, lease, system)
    server.store.create(EVENTS, canaries.event("gateway-0", "BackOff"), system)
    server.store.create(EVENTS, canaries.event("alpha", "Failed", kind="Tenant", component="vkgateway"), "default")
