"""Tests of queue, explain, top, usage and status in a tenant's cluster and in the management cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import click
import msgspec
import pytest
import yaml

from tests.fakes.apiserver import FakeApiServer
from tests.unit.cli.gateway import NOON, gang, pool, tenant
from tests.unit.cli.plugin.tool import (
    GPU,
    ReviewingApiServer,
    Tool,
    node,
    pod,
    put,
    put_nodes,
    rights,
    running,
    waits,
)
from tests.unit.cli.test_usage_days import budget_use, day_usage
from vkgateway.cli.plugin.main import COMMANDS, plugin
from vkgateway.kube.resources import COMPUTE_CLUSTERS, LEASES, TENANTS
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport
from vkgateway.serve.health import HealthServer
from vkgateway.tenants.usage.budgets import UsageReport

ROOM = "needs 2 pods of nvidia.com/gpu 8; 0 of 2 would fit now"
USAGE = UsageReport(
    days=[day_usage("2026-11-25", 96.0), day_usage("2026-11-25", 2.0, tenant="beta")],
    budgets=[budget_use(), budget_use(tenant="beta")],
)
STATE = ArbiterReport(
    time=NOON,
    pools=(pool(), pool("v100")),
    tenants=(tenant("alpha"), tenant("beta"), tenant("beta", pool="v100")),
    gangs=(gang("alpha/ns/gang/first"), gang("beta/other/gang/second", place=2)),
)


@pytest.fixture
async def management(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ReviewingApiServer]:
    """Yield a management cluster whose gateway runs on this machine."""
    socket = tool.folder / "said.sock"
    health = HealthServer(
        address="127.0.0.1",
        port=0,
        checks={},
        state=lambda: msgspec.json.encode(STATE),
        usage=lambda *_: msgspec.json.encode(USAGE),
        socket=socket,
    )
    async with ReviewingApiServer() as server, health:
        (tool.folder / "gateway.yaml").write_text(yaml.safe_dump({"observability": {"socket": str(socket)}}))
        file = tool.use(monkeypatch, server.url)
        (tool.folder / "compute.kubeconfig").write_text(file.read_text())
        yield server


async def test_queue_of_all_tenants(tool: Tool, management: ReviewingApiServer) -> None:
    assert await tool("queue", "-o", "name") == 0, tool.err
    assert tool.out.split() == ["ns/first", "other/second"], "the namespace of the context is not one of tenants"
    assert await tool("queue", "-n", "other", "-o", "name") == 0
    assert tool.out.split() == ["other/second"]
    assert await tool("queue", "--tenant", "alpha") == 0
    assert "TENANT" in tool.out
    assert "second" not in tool.out


async def test_top_of_all_tenants_and_of_one(tool: Tool, management: ReviewingApiServer) -> None:
    assert await tool("top", "-o", "json") == 0, tool.err
    assert [row["tenant"] for row in json.loads(tool.out)["tenants"]] == ["alpha", "beta", "beta"]
    assert await tool("top", "--tenant", "alpha", "-o", "json") == 0
    state = json.loads(tool.out)
    assert ([row["tenant"] for row in state["tenants"]], [row["pool"] for row in state["pools"]]) == (
        ["alpha"],
        ["a100"],
    )
    assert await tool("top", "--tenant", "nobody") == 3
    assert "Available tenants: alpha, beta." in tool.err


async def test_top_of_tenant_counts_its_pods_by_node(tool: Tool, server: ReviewingApiServer) -> None:
    put_nodes(server, node(), node("v100.local", gpus=4, ready=False))
    put(server, running("r"), running("s", namespace="other") | {"metadata": {"name": "s", "namespace": "other"}})
    put(server, pod("w", gpus=3, status=waits(f"{ROOM}; place 2 in a100.local; expected start not known")))
    put(server, pod("new", gpus=1), running("done", status={"phase": "Succeeded"}))
    assert await tool("top", "-o", "json") == 0, tool.err
    rows = {row["node"]: row for row in json.loads(tool.out)}
    first = rows["a100.local"]
    assert (first["capacity"], first["used"], first["waiting"], first["ready"]) == (16, 16, 3, True)
    assert (first["gangsRunning"], first["gangsWaiting"], first["resource"]) == (2, 1, GPU)
    assert (rows["v100.local"]["capacity"], rows["v100.local"]["used"], rows["v100.local"]["ready"]) == (4, 0, False)
    assert (rows[""]["waiting"], rows[""]["capacity"]) == (1, None), "a pod without a decision is in no queue"
    assert await tool("top", "-n", "ns") == 0
    assert "a100.local   yes     nvidia.com/gpu         16      8" in tool.out


async def test_top_with_few_rights_shows_what_is_readable(tool: Tool, server: ReviewingApiServer) -> None:
    put_nodes(server, node())
    put(server, running("r"), running("s") | {"metadata": {"name": "s", "namespace": "other"}})
    server.rights = rights("ns", pods="get list")
    assert await tool("top", "-o", "json") == 0, tool.err
    (row,) = json.loads(tool.out)
    assert (row["node"], row["used"], row["capacity"], row["ready"]) == ("a100.local", 8, None, None)
    assert "Only pods of namespace ns are counted: user 'jane' cannot list pods everywhere" in tool.err
    assert "Capacity is not shown: user 'jane' cannot list nodes" in tool.err
    assert await tool("top", "-A") == 5


async def test_usage_of_tenant_counts_existing_pods(tool: Tool, server: ReviewingApiServer) -> None:
    put_nodes(server, node())
    ended = {"terminated": {"finishedAt": "2026-11-26T11:30:00Z"}}
    statuses = {"phase": "Succeeded", "startTime": "2026-11-26T10:00:00Z", "containerStatuses": [{"state": ended}]}
    put(server, running("done", status=statuses), running("r"), pod("w"))
    line = ("--since", "2026-11-26T11:00:00Z", "--until", "2026-11-26T12:00:00Z")
    assert await tool("usage", *line, "-o", "json") == 0, tool.err
    (total,) = json.loads(tool.out)
    assert (total["hours"], total["pods"]) == (8 * 0.5 + 8 * 1, 2)
    assert total["by"] == {"namespace": "ns", "pool": "a100", "band": "guaranteed", "resource": GPU}
    assert "Only pods that still exist are counted" in tool.err
    assert await tool("usage", *line, "--by", "pod", "-o", "csv") == 0
    assert tool.out.splitlines()[0] == "pod,resource,hours,pods"
    assert await tool("usage", "--by", "tenant") == 2
    assert "Available keys: namespace" in tool.err


async def test_usage_of_all_tenants_reads_log(tool: Tool, management: ReviewingApiServer) -> None:
    record = {
        "tenant": "alpha",
        "namespace": "ns",
        "pod": "p",
        "gang": "",
        "band": "low",
        "borrowed": True,
        "pool": "a100",
        "computeCluster": "local",
        "resource": GPU,
        "units": 8,
        "start": NOON,
        "end": NOON + 3600,
    }
    log = tool.folder / "usage.jsonl"
    log.write_text("".join(json.dumps(record | {"tenant": name}) + "\n" for name in ("alpha", "beta")))
    settings = yaml.safe_load((tool.folder / "gateway.yaml").read_text())
    (tool.folder / "gateway.yaml").write_text(yaml.safe_dump(settings | {"arbiter": {"usageLog": str(log)}}))
    line = ("--since", "2026-11-01T00:00:00Z", "--until", "2026-12-01T00:00:00Z", "-o", "json")
    assert await tool("usage", *line) == 0, tool.err
    assert [(total["by"]["tenant"], total["borrowedHours"]) for total in json.loads(tool.out)] == [
        ("alpha", 8),
        ("beta", 8),
    ]
    assert await tool("usage", *line, "--tenant", "beta") == 0
    assert [total["by"]["tenant"] for total in json.loads(tool.out)] == ["beta"]


async def test_usage_by_day_and_budgets_come_from_gateway(tool: Tool, management: ReviewingApiServer) -> None:
    assert await tool("usage", "--days", "31", "--by", "day,tenant", "-o", "json") == 0, tool.err
    assert [(row["tenant"], row["hours"]) for row in json.loads(tool.out)] == [("alpha", 96), ("beta", 2)]
    assert await tool("usage", "--days", "2", "--tenant", "beta", "-o", "csv") == 0
    assert "alpha" not in tool.out
    assert await tool("usage", "--days", "2", "-o", "opencost", "--price", f"{GPU}=2") == 0
    assert await tool("usage", "--budgets", "--tenant", "alpha", "-o", "json") == 0
    assert [row["tenant"] for row in json.loads(tool.out)] == ["alpha"]
    assert await tool("usage", "--days", "2", "--since", "1h") == 2


async def test_days_and_budgets_are_refused_in_tenant_cluster(tool: Tool, server: ReviewingApiServer) -> None:
    for option in (("--days", "2"), ("--budgets",)):
        assert await tool("usage", *option) == 2
        assert "for the management cluster" in tool.err


async def test_usage_elsewhere_says_what_is_needed(
    tool: Tool, management: ReviewingApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKGATEWAY_DATA_DIR", str(tool.folder / "elsewhere"))
    assert await tool("usage") == 5
    assert "is not on this machine" in tool.err


async def test_status_of_tenant(tool: Tool, server: ReviewingApiServer) -> None:
    put_nodes(server, node())
    deadline = {"vkgateway.io/eviction-deadline": "2026-11-26T12:00:00Z"}
    evicted = running("e")
    evicted["metadata"]["annotations"] = deadline
    put(server, running("r"), pod("w", status=waits(ROOM)), evicted)
    assert await tool("status") == 0, tool.err
    assert f"tenant cluster at {server.url} (context here)" in tool.out
    assert "1 running, 1 waiting, 1 leaving" in tool.out
    assert "user        jane" in tool.out
    assert "2026-11-26T12:00:00Z" in tool.out
    put_nodes(server, node("v100.local", ready=False))
    assert await tool("status", "-o", "json") == 5, "a node is not ready"
    assert [(state["name"], state["ready"]) for state in json.loads(tool.out)["nodes"]] == [
        ("a100.local", True),
        ("v100.local", False),
    ]


async def test_status_with_few_rights_names_them(tool: Tool, server: ReviewingApiServer) -> None:
    server.rights = rights("ns", pods="get list")
    put(server, running("r"))
    assert await tool("status") == 5
    assert "problem     user 'jane' cannot list nodes" in tool.out
    assert "1 running" in tool.out


async def test_status_of_platform(tool: Tool, management: ReviewingApiServer) -> None:
    def ready(status: str, **more: Any) -> dict[str, Any]:
        return {"conditions": [{"type": "Ready", "status": status, **more}]}

    put(management, {"metadata": {"name": "alpha"}, "status": {"phase": "Ready", **ready("True")}}, resource=TENANTS)
    put(management, {"metadata": {"name": "local"}, "status": ready("True")}, resource=COMPUTE_CLUSTERS)
    assert await tool("status") == 5
    assert "problem     no gateway has served this cluster" in tool.out
    lease = {"metadata": {"name": "gateway"}, "spec": {"holderIdentity": "gateway-0/1a2b"}}
    management.store.create(LEASES, lease, "vkgateway-system")
    assert await tool("status") == 0, tool.out
    assert "gateway-0 leads" in tool.out
    put(
        management,
        {"metadata": {"name": "beta"}, "status": ready("False", reason="Starting", message="is created")},
        resource=TENANTS,
    )
    assert await tool("status") == 5
    assert "is created" in tool.out


async def test_explain_takes_kind_and_name(tool: Tool, server: ReviewingApiServer) -> None:
    put(server, pod("w", status=waits(ROOM)))
    assert await tool("explain", "pod/w", "-o", "json") == 0, tool.err
    assert json.loads(tool.out)["message"] == ROOM
    assert await tool("explain", "job/w") == 2
    assert "is not a pod" in tool.err
    assert await tool("explain", "w", "-A") == 2
    assert await tool("explain", "none") == 3


async def test_explain_for_ops_needs_secret_of_tenant(tool: Tool, management: FakeApiServer) -> None:
    assert await tool("explain", "w", "--tenant", "gamma") == 3
    assert "tenant 'gamma' does not exist" in tool.err


def test_every_command_has_help_an_example_and_options_of_kubectl() -> None:
    context = click.Context(plugin)
    for name in COMMANDS:
        command = plugin.get_command(context, name)
        assert command is not None
        assert command.help
        assert f"kubectl vkgateway {name}" in (command.epilog or "")
        options = {option for parameter in command.params for option in parameter.opts}
        assert options >= {"-n", "--namespace", "-A", "--all-namespaces", "--context", "--kubeconfig"}, name
        assert options >= {"--cluster", "--user", "--request-timeout"}, name


def test_only_the_invoked_command_is_imported() -> None:
    script = (
        "import sys; from vkgateway.cli.main import run_command; from vkgateway.cli.plugin.main import plugin;"
        "run_command(['queue', '--help'], group=plugin);"
        "slow = ('aiohttp', 'rich', 'grpc', 'yaml', 'msgspec', 'structlog', 'vkgateway.cli.plugin.report');"
        "print([name for name in sys.modules if name in slow])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['msgspec']"
