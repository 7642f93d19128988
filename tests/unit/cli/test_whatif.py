"""Tests of `vkgateway whatif` against a gateway after one cycle."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import EPOCH, FakeClock
from tests.unit.arbiter.simulated_cluster import LOW, Cluster, make_gang, make_node, make_quota
from tests.unit.cli.gateway import Cli
from vkgateway.kube.resources import COMPUTE_CLUSTERS
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport
from vkgateway.serve.arbiter_observer import ArbiterObserver
from vkgateway.settings.config import Arbiter

GPU = "nvidia.com/gpu"
NAMES = {"u1": ("ns", "web-7")}


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capsys)


def lent() -> Cluster:
    """Return a cluster of two nodes: one is guaranteed to a, and b borrows both."""
    there = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8), make_quota("b")])
    there.add(make_gang("b/ns/gang/low", "b", [8], band=LOW), make_gang("b/ns/pod/u1", "b", [8], band=LOW))
    there.run_for(2)
    return there


@asynccontextmanager
async def gateway(cli: Cli, there: Cluster | None) -> AsyncIterator[ArbiterObserver]:
    """Serve a gateway whose arbiter has completed a cycle, or none yet."""
    clock = FakeClock(there.now + 3 if there is not None else 0.0, origin=EPOCH)
    watch = ArbiterObserver(Arbiter(), pod_names=lambda: NAMES, clock=clock)
    if there is not None:
        watch.cycle_decided(there.snapshot(), decide(there.snapshot(), there.now), now=there.now, seconds=0.001)
    async with cli.gateway(ArbiterReport(), what_if=watch.answer_what_if):
        yield watch


async def test_gang_answer_uses_facts_of_explain(cli: Cli) -> None:
    async with gateway(cli, lent()):
        assert await cli("whatif", "gang", "--tenant", "a", "--request", f"{GPU}=8") == 0, cli.err
    facts = dict(line.split(":", 1) for line in cli.out.partition("\n\n")[0].splitlines())
    values = {title: value.strip() for title, value in facts.items()}
    assert values["Question"] == f"tenant a submits a pod with {GPU} 8, guaranteed band"
    assert values["Answer"] == "It starts, inside the tenant's guarantee, once the arbiter has evicted 1 pod."
    assert values["State"] == "waiting"
    assert values["Capacity"] == "all inside the tenant's guarantee"
    assert values["Reason"] == "WaitingForEviction"
    assert values["Expected start"] == "within a minute"
    assert values["Pool"].startswith(f"pool.compute: 16 {GPU}, 0 used inside guarantees, 16 borrowed, 0 free")
    assert "What helps" not in values, "nothing was asked for yet, and no eviction has begun"
    _, titles, row = cli.out.split("\n\n")[1].splitlines()
    assert titles.split() == [
        "TENANT",
        "NAMESPACE",
        "NAME",
        "PODS",
        "WHOLE",
        "CAPACITY",
        "NOTICE",
        "GRACE",
        "LOST",
        "NODES",
    ]
    assert row.split()[:3] in (["b", "ns", "low"], ["b", "ns", "web-7"])
    assert "10s" in row
    assert cli.out.endswith("Nothing was changed.\n")


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
async def test_json_has_complete_answer(cli: Cli, output: str, read: Any) -> None:
    there = lent()
    async with gateway(cli, there):
        line = ("whatif", "gang", "--tenant", "a", "--pods", "2", "--min", "1", "--request", f"{GPU}=4,cpu=1")
        assert await cli(*line, "--run-limit", "90m", "-o", output) == 0, cli.err
    answer = read(cli.out)
    assert answer["question"] == {
        "kind": "gang",
        "tenant": "a",
        "pods": 2,
        "requests": {GPU: "4", "cpu": "1"},
        "minimum": 1,
        "pools": [],
        "band": "guaranteed",
        "priority": 0,
        "runLimit": 5400.0,
        "within": "",
    }
    assert (answer["verdict"], answer["time"] - answer["seen"]) == ("StartsAfterEviction", 3.0)
    [outcome], [evicted] = answer["gangs"], answer["evictions"]
    assert outcome["placements"][0]["node"] in evicted["nodes"]
    assert {"notice", "grace", "lost", "deadline", "makesRoomFor"} <= evicted.keys()


async def test_waiting_gang_has_reason_and_help(cli: Cli) -> None:
    async with gateway(cli, lent()):
        line = ("whatif", "gang", "--tenant", "b", "--request", f"{GPU}=8", "--low", "--pool", "pool")
        assert await cli(*line) == 0, cli.err
        assert "Answer:         It waits.\n" in cli.out
        assert "Queue position: 1 in pool.compute\n" in cli.out
        assert "What helps:     Nodes must become free." in cli.out
        assert await cli(*line, "-o", "json") == 0
    assert json.loads(cli.out)["gangs"][0]["help"].startswith("Nodes must become free.")


@pytest.mark.parametrize(
    ("line", "code", "message", "remedy"),
    [
        (("--tenant", "c", "--request", f"{GPU}=8"), 3, "tenant 'c' does not exist", "Available tenants: a, b."),
        (("--tenant", "a", "--request", f"{GPU}=8", "--pool", "x"), 3, "pool 'x' does not exist", "pool.compute"),
        (("--tenant", "a", "--request", "nvidia.com/gpus=8"), 2, "'nvidia.com/gpus'", f"Did you mean {GPU}?"),
        (
            ("--tenant", "a", "--request", f"{GPU}=8", "--pods", "0"),
            2,
            "pods: 0 is not between 1 and 10000",
            "another size",
        ),
        (("--tenant", "a", "--request", GPU), 2, f"'{GPU}' is not RESOURCE=QUANTITY", "Example: nvidia.com"),
        (("--tenant", "a", "--request", f"{GPU}=8,{GPU}=4"), 2, "is given twice", "once"),
        (("--tenant", "a", "--request", f"{GPU}=8", "--run-limit", "soon"), 2, "--run-limit 'soon'", "90m"),
    ],
)
async def test_invalid_questions_are_refused_with_way_out(
    cli: Cli, line: tuple[str, ...], code: int, message: str, remedy: str
) -> None:
    async with gateway(cli, lent()):
        assert await cli("whatif", "gang", *line) == code
    assert message in cli.err
    assert remedy in cli.err
    assert cli.out == ""


async def test_guarantee_answer_lists_cells(cli: Cli) -> None:
    async with gateway(cli, lent()):
        line = ("whatif", "guarantee", "--tenant", "new", "--pool")
        assert await cli(*line, f"pool.compute:guarantee={GPU}=8,cells=4+4") == 0, cli.err
        assert f"Question:       tenant new is guaranteed {GPU} 8 in pool.compute in cells of 4, 4\n" in cli.out
        assert "Answer:         It fits next to the existing guarantees." in cli.out
        _, cells, evicted, _ = cli.out.split("\n\n")
        assert [row.split()[:2] for row in cells.splitlines()[2:]] == [["4", "lent"], ["4", "lent"]]
        assert evicted.startswith("Evicted if the guarantee is used at once:\n")
        assert await cli(*line, f"pool.compute:guarantee={GPU}=16", "-o", "json") == 0, "an answer is no failure"
        answer = json.loads(cli.out)
        assert (answer["verdict"], answer["cells"]) == ("Refused", [])
        assert answer["question"]["limit"] is None, "limits that are not given stay"
        assert await cli(*line, f"pool.compute:guarantee={GPU}=8,limit={GPU}=8,weight=2", "-o", "json") == 0
        question = json.loads(cli.out)["question"]
        assert (question["limit"], question["weight"]) == ({GPU: "8"}, 2.0)
        assert await cli(*line, "pool.compute") == 2
        assert "has no guarantee" in cli.err
        assert await cli(*line, f"pool:guarantee={GPU}=8") == 3
        assert "pool 'pool.local' does not exist" in cli.err


async def test_drain_answer_lists_gangs(cli: Cli) -> None:
    async with gateway(cli, lent()):
        assert await cli("whatif", "drain", "n0", "n1") == 0, cli.err
        assert "Question:       n0, n1 are drained\n" in cli.out
        assert "Answer:         2 pods must move: 2 gangs wait.\n" in cli.out
        moves = next(part for part in cli.out.split("\n\n") if part.startswith("Gangs that move:"))
        assert sorted(row.split()[2] for row in moves.splitlines()[2:]) == ["low", "web-7"]
        assert "\nGuarantees:\n" in cli.out
        assert "2/2 -> 0/2" in cli.out
        assert await cli("whatif", "drain", "n0", "-o", "json") == 0
        [moved] = json.loads(cli.out)["gangs"]
        assert (moved["verdict"], moved["code"]) == ("Waits", "WaitingForRoom")
        assert moved["help"].startswith("Nodes must become free.")
        assert await cli("whatif", "drain", "n7") == 3
        assert "node 'n7' is in no pool" in cli.err


async def test_grow_answer_lists_starting_gangs(cli: Cli) -> None:
    there = lent()
    there.add(make_gang("b/ns/gang/waits", "b", [8], band=LOW), make_gang("b/ns/gang/waits-too", "b", [16], band=LOW))
    async with gateway(cli, there):
        assert await cli("whatif", "grow", "pool", "--nodes", "1") == 0, cli.err
        assert "Answer:         With these nodes, 1 gang starts now.\n" in cli.out
        assert "Note:           The new nodes are like n0:" in cli.out
        effects = next(part for part in cli.out.split("\n\n") if part.startswith("Other gangs:"))
        assert "starts on new-1" in effects
        assert "2/2 -> 3/3" in cli.out
        assert await cli("whatif", "grow", "pool", "--nodes", "0") == 2
        assert "nodes: 0 is not between 1 and 10000" in cli.err
        assert await cli("whatif", "grow", "pool", "--nodes", "1", "--like", "n9") == 3


async def test_long_tables_are_shortened_only_for_people(cli: Cli) -> None:
    there = Cluster([make_node(f"n{number:02}") for number in range(30)], [make_quota("b")])
    there.add(*(make_gang(f"b/ns/gang/g{number:02}", "b", [8], band=LOW) for number in range(60)))
    there.run_for(1)
    async with gateway(cli, there):
        assert await cli("whatif", "grow", "pool", "--nodes", "30") == 0, cli.err
        assert "and 10 more; use -o json to list all" in cli.out
        assert await cli("whatif", "grow", "pool", "--nodes", "30", "-o", "json") == 0
    assert len(json.loads(cli.out)["effects"]) == 30


@asynccontextmanager
async def management(cli: Cli) -> AsyncIterator[tuple[str, ...]]:
    """Serve a management cluster with the pool, and yield the options that select it."""
    api = "vkgateway.io/v1alpha1"
    pools = [{"name": "pool", "nodeSelector": {"pool": "pool"}}]
    cluster = {"apiVersion": api, "kind": "ComputeCluster", "metadata": {"name": "compute"}, "spec": {"pools": pools}}
    async with FakeApiServer() as server:
        server.store.create(COMPUTE_CLUSTERS, cluster)
        yield "--kubeconfig", str(cli.kubeconfig(server.url))


async def test_dry_run_of_tenant_shows_effect_of_guarantees(cli: Cli) -> None:
    line = ("tenant", "create", "new", "--dry-run", "--pool", f"pool.compute:guarantee={GPU}=8")
    async with management(cli) as options:
        async with gateway(cli, lent()):
            assert await cli(*line, *options) == 0, cli.err
            made = yaml.safe_load(cli.out)
            assert (made["kind"], made["metadata"]["name"]) == ("Tenant", "new"), "only that goes to standard output"
            assert "It fits next to the existing guarantees" in cli.err
            assert "Evicted if the guarantee is used at once:" in cli.err
            assert await cli(*line[:4], "--pool", "pool.compute", *options) == 0
            assert cli.err == "", "nothing is guaranteed"
        assert await cli(*line, *options) == 0, "without the gateway it is checked all the same"
        assert yaml.safe_load(cli.out)["kind"] == "Tenant"
        assert "The effect of the guarantee in pool.compute is unknown: the gateway at" in cli.err


async def test_gateway_without_cycle_is_an_error(cli: Cli) -> None:
    async with gateway(cli, None):
        assert await cli("whatif", "gang", "--tenant", "a", "--request", f"{GPU}=8") == 5
    assert "the arbiter has not completed a cycle yet" in cli.err


async def test_standby_is_an_error(cli: Cli) -> None:
    async with cli.gateway(ArbiterReport()):
        assert await cli("whatif", "gang", "--tenant", "a", "--request", f"{GPU}=8") == 5
    assert "only the leading gateway" in cli.err
    assert "--gateway-kubeconfig" in cli.err


async def test_invalid_question_is_refused(cli: Cli) -> None:
    async with gateway(cli, lent()) as watch:
        for question in (b"", b"{}", b'{"kind": "gang", "tenant": "a"}', b'{"kind": "drain", "nodes": [], "x": 1}'):
            status, body = watch.answer_what_if(question)
            assert (status, json.loads(body)["exitCode"]) == (422, 2)


async def test_each_question_has_an_example_in_its_help(cli: Cli) -> None:
    for name in ("gang", "guarantee", "drain", "grow"):
        assert await cli("whatif", name, "--help") == 0
        assert f"  vkgateway whatif {name} " in cli.out
    assert await cli("whatif", "--help") == 0
    listed = [line.split()[0] for line in cli.out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()]
    assert listed == ["gang", "guarantee", "drain", "grow"]
    assert "Nothing is changed" in cli.out
