"""Tests of `vkgateway whatif` against a gateway that has seen a cycle."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.arbiter.sim import LOW, Cluster, gang, node, quota
from tests.unit.cli.gateway import Cli
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.state import State
from vkgateway.gateway.arbiter_watch import ArbiterWatch
from vkgateway.gateway.config import Arbiter

GPU = "nvidia.com/gpu"
NAMES = {"u1": ("ns", "web-7")}


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capsys)


def lent() -> Cluster:
    """Two nodes: one is guaranteed to a, and b runs on both, borrowed."""
    there = Cluster([node("n0"), node("n1")], [quota("a", 8), quota("b")])
    there.add(gang("b/ns/gang/low", "b", [8], band=LOW), gang("b/ns/pod/u1", "b", [8], band=LOW))
    there.settle(2)
    return there


@asynccontextmanager
async def gateway(cli: Cli, there: Cluster | None) -> AsyncIterator[ArbiterWatch]:
    """A gateway whose arbiter has just decided, or has not yet."""
    watch = ArbiterWatch(Arbiter(), clock=lambda: there.now + 3 if there is not None else 0.0)
    watch.names = lambda: NAMES
    if there is not None:
        watch.decided(there.snapshot(), decide(there.snapshot(), there.now), now=there.now, seconds=0.001)
    async with cli.gateway(State(), what_if=watch.what_if):
        yield watch


async def test_a_gang_is_told_of_in_the_words_of_explain(cli: Cli) -> None:
    async with gateway(cli, lent()):
        assert await cli("whatif", "gang", "--tenant", "a", "--request", f"{GPU}=8") == 0, cli.err
    facts = dict(line.split(":", 1) for line in cli.out.partition("\n\n")[0].splitlines())
    told = {title: value.strip() for title, value in facts.items()}
    assert told["Question"] == f"tenant a submits a pod of {GPU} 8, guaranteed"
    assert told["Answer"] == "It starts, inside the tenant's guarantee, once the arbiter has evicted 1 pod."
    assert told["State"] == "waiting"
    assert told["Holds"] == "all inside the tenant's guarantee"
    assert told["Reason"] == "WaitingForEviction"
    assert told["Expected start"] == "within a minute"
    assert told["Pool"].startswith(f"pool.compute: of 16 {GPU} 0 used inside guarantees, 16 borrowed, 0 free")
    assert "What helps" not in told, "nothing was asked for yet, and no eviction has begun"
    _, titles, row = cli.out.split("\n\n")[1].splitlines()
    assert titles.split() == [
        "TENANT",
        "NAMESPACE",
        "NAME",
        "PODS",
        "WHOLE",
        "HOLDS",
        "NOTICE",
        "GRACE",
        "LOST",
        "NODES",
    ]
    assert row.split()[:3] in (["b", "ns", "low"], ["b", "ns", "web-7"])
    assert "10s" in row
    assert cli.out.endswith("Nothing changed.\n")


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
async def test_programs_get_all_of_it(cli: Cli, output: str, read: Any) -> None:
    there = lent()
    async with gateway(cli, there):
        line = ("whatif", "gang", "--tenant", "a", "--pods", "2", "--min", "1", "--request", f"{GPU}=4,cpu=1")
        assert await cli(*line, "--run-limit", "90m", "-o", output) == 0, cli.err
    told = read(cli.out)
    assert told["question"] == {
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
    assert (told["verdict"], told["time"] - told["seen"]) == ("StartsAfterEviction", 3.0)
    [outcome], [evicted] = told["gangs"], told["evictions"]
    assert outcome["placements"][0]["node"] in evicted["nodes"]
    assert {"notice", "grace", "lost", "deadline", "makesRoomFor"} <= evicted.keys()


async def test_what_waits_is_told_with_reason_and_what_would_help(cli: Cli) -> None:
    async with gateway(cli, lent()):
        line = ("whatif", "gang", "--tenant", "b", "--request", f"{GPU}=8", "--low", "--pool", "pool")
        assert await cli(*line) == 0, cli.err
        assert "Answer:         It waits.\n" in cli.out
        assert "Place in line:  1 in pool.compute\n" in cli.out
        assert "What helps:     Nodes must come free." in cli.out
        assert await cli(*line, "-o", "json") == 0
    assert json.loads(cli.out)["gangs"][0]["help"].startswith("Nodes must come free.")


@pytest.mark.parametrize(
    ("line", "code", "said", "way_out"),
    [
        (("--tenant", "c", "--request", f"{GPU}=8"), 3, "tenant 'c' does not exist", "Available tenants: a, b."),
        (("--tenant", "a", "--request", f"{GPU}=8", "--pool", "x"), 3, "pool 'x' does not exist", "pool.compute"),
        (("--tenant", "a", "--request", "nvidia.com/gpus=8"), 2, "'nvidia.com/gpus'", f"Did you mean {GPU}?"),
        (("--tenant", "a", "--request", f"{GPU}=8", "--pods", "0"), 2, "a gang of 0 pods", "1 to 10000"),
        (("--tenant", "a", "--request", GPU), 2, f"cannot read '{GPU}'", "RESOURCE=QUANTITY"),
        (("--tenant", "a", "--request", f"{GPU}=8,{GPU}=4"), 2, "is given twice", "once"),
        (("--tenant", "a", "--request", f"{GPU}=8", "--run-limit", "soon"), 2, "--run-limit 'soon'", "90m"),
    ],
)
async def test_bad_input_is_refused_with_a_way_out(
    cli: Cli, line: tuple[str, ...], code: int, said: str, way_out: str
) -> None:
    async with gateway(cli, lent()):
        assert await cli("whatif", "gang", *line) == code
    assert said in cli.err
    assert way_out in cli.err
    assert cli.out == ""


async def test_a_gateway_that_has_decided_nothing_yet_says_so(cli: Cli) -> None:
    async with gateway(cli, None):
        assert await cli("whatif", "gang", "--tenant", "a", "--request", f"{GPU}=8") == 5
    assert "the arbiter has decided nothing yet" in cli.err


async def test_a_gateway_that_knows_no_questions_is_of_another_version(cli: Cli) -> None:
    async with cli.gateway(State()):
        assert await cli("whatif", "gang", "--tenant", "a", "--request", f"{GPU}=8") == 5
    assert "it answers 404" in cli.err
    assert "another version" in cli.err


async def test_a_question_that_cannot_be_read_is_refused(cli: Cli) -> None:
    async with gateway(cli, lent()) as watch:
        for question in (b"", b"{}", b'{"kind": "gang", "tenant": "a"}', b'{"kind": "drain", "nodes": [], "x": 1}'):
            status, body = watch.what_if(question)
            assert (status, json.loads(body)["exitCode"]) == (422, 2)


async def test_each_question_has_an_example_in_its_help(cli: Cli) -> None:
    for name in ("gang",):
        assert await cli("whatif", name, "--help") == 0
        assert f"  vkgateway whatif {name} " in cli.out
    assert await cli("whatif", "--help") == 0
    assert "Nothing is changed" in cli.out
