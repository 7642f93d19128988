"""`tenant set` against a fake API server: changed fields, refusals and other writers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import yaml

from tests.support.waiting import wait_until
from tests.unit.cli.test_tenant import API, REFUSED, TYPES, Cli, cli, hold
from vkgateway.kube.resources import TENANTS

__all__ = ["cli"]

GUARANTEE = {"nvidia.com/gpu": "8"}
SPEC: dict[str, Any] = {
    "pools": [{"name": "a100", "guarantee": GUARANTEE, "limit": {"nvidia.com/gpu": "16"}, "weight": 2.0}],
    "policy": {"podSecurity": "restricted", "storageClasses": ["slow"], "futureField": True},
    "budget": [{"resource": "nvidia.com/gpu", "hours": 100.0}],
}


def create_tenant(cli: Cli) -> None:
    cli.server.store.create(TENANTS, {"apiVersion": API, "kind": "Tenant", "metadata": {"name": "alpha"}, "spec": SPEC})
    accept(cli)


def accept(cli: Cli, *conditions: tuple[str, str, str, str]) -> None:
    """Report as the gateway that the current generation is accepted and ready, or the given conditions."""
    found = cli.server.store.get(TENANTS, "alpha")
    generation = found["metadata"]["generation"]
    chosen = conditions or tuple((kind, "True", kind, f"{kind} now") for kind in TYPES)
    made = [
        dict(zip(("type", "status", "reason", "message"), one, strict=True)) | {"observedGeneration": generation}
        for one in chosen
    ]
    status = {"observedGeneration": generation, "phase": "Ready", "conditions": made}
    cli.server.store.update(TENANTS, found | {"status": status}, name="alpha", status=True)


def spec_of(cli: Cli) -> dict[str, Any]:
    spec: dict[str, Any] = cli.server.store.get(TENANTS, "alpha")["spec"]
    return spec


async def change(cli: Cli, *line: str, answer: tuple[tuple[str, str, str, str], ...] = ()) -> int:
    """Run the command; the gateway answers the changed object once."""
    generation = cli.server.store.get(TENANTS, "alpha")["metadata"]["generation"]

    def is_changed() -> bool:
        return bool(cli.server.store.get(TENANTS, "alpha")["metadata"]["generation"] > generation)

    async def reconcile() -> None:
        await wait_until(is_changed, seconds=10)
        accept(cli, *answer)

    code, _ = await asyncio.gather(cli("tenant", "set", "alpha", *line), reconcile())
    return code


async def test_parts_of_a_pool_without_a_value_stay(cli: Cli) -> None:
    create_tenant(cli)
    assert await change(cli, "--pool", "a100:guarantee=nvidia.com/gpu=16") == 0, cli.err
    assert spec_of(cli) == SPEC | {"pools": [SPEC["pools"][0] | {"guarantee": {"nvidia.com/gpu": "16"}}]}
    assert "tenant alpha: spec.pools changed" in cli.err
    assert "tenant alpha is ready" in cli.err
    assert cli.out == ""


async def test_none_removes_a_part_and_empties_a_list(cli: Cli) -> None:
    create_tenant(cli)
    line = ("--pool", "a100:limit=none,guarantee=none", "--budget", "none", "--storage-class", "none")
    assert await change(cli, *line, "-o", "json") == 0, cli.err
    assert spec_of(cli) == {
        "pools": [{"name": "a100", "weight": 2.0}],
        "policy": {"podSecurity": "restricted", "futureField": True},
    }
    assert json.loads(cli.out)["spec"]["pools"] == [{"name": "a100", "weight": 2.0}]


async def test_other_fields_change_together(cli: Cli) -> None:
    create_tenant(cli)
    line = ("--pod-security", "baseline", "--preemption", "Never", "--port", "20001", "--subject-alt-name", "a.example")
    assert await change(cli, *line, "--no-wait") == 0, cli.err
    assert spec_of(cli) == SPEC | {
        "policy": {"storageClasses": ["slow"], "futureField": True},
        "preemption": {"withinTenant": "Never"},
        "apiServer": {"port": 20001, "subjectAltNames": ["a.example"]},
    }
    assert "spec.apiServer, spec.policy, spec.preemption changed" in cli.err


@pytest.mark.parametrize(
    ("option", "protected"), [("--deletion-protection", True), ("--no-deletion-protection", False)]
)
async def test_deletion_protection_is_switched(cli: Cli, option: str, protected: bool) -> None:
    create_tenant(cli)
    found = cli.server.store.get(TENANTS, "alpha")
    cli.server.store.update(TENANTS, found | {"spec": SPEC | {"deletionProtection": not protected}}, name="alpha")
    assert await change(cli, option) == 0, cli.err
    assert spec_of(cli).get("deletionProtection", False) is protected


async def test_dry_run_prints_the_object_and_changes_nothing(cli: Cli) -> None:
    create_tenant(cli)
    assert (
        await cli("tenant", "set", "alpha", "--pool", "a100:guarantee=nvidia.com/gpu=24,limit=none", "--dry-run") == 0
    )
    shown = yaml.safe_load(cli.out)
    assert shown["metadata"] == {"name": "alpha"}
    assert shown["spec"]["pools"] == [{"name": "a100", "guarantee": {"nvidia.com/gpu": "24"}, "weight": 2.0}]
    assert "The effect of the guarantee in a100.local is unknown" in cli.err
    assert spec_of(cli) == SPEC


async def test_dry_run_asks_only_about_changed_guarantees(cli: Cli) -> None:
    create_tenant(cli)
    assert await cli("tenant", "set", "alpha", "--preemption", "Never", "--dry-run") == 0
    assert "effect" not in cli.err


async def test_equal_values_write_nothing(cli: Cli) -> None:
    create_tenant(cli)
    assert await cli("tenant", "set", "alpha", "--pool", "a100:weight=2") == 0
    assert "tenant alpha has these values already" in cli.err
    assert not [request for request in cli.server.requests if request.startswith("PATCH")]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (("alpha",), 2, "no change is given"),
        (("beta", "--port", "1"), 3, "Available tenants: alpha"),
        (("alpha", "--pool", "h100"), 2, "available pools: a100"),
        (("alpha", "--pool", "a100:limit=nvidia.com/gpu=4"), 2, "spec.pools[0].limit"),
        (("alpha", "--pool", "a100:guarantee=nvidia.com/gpu=33,limit=none"), 2, "at most 32"),
        (("alpha", "--remove-pool", "v100"), 2, "Its pools: a100.local"),
        (("alpha", "--kubernetes-version", "1.2"), 2, "'1.2' is not a Kubernetes version"),
    ],
)
async def test_invalid_change_is_refused_before_it_is_written(
    cli: Cli, line: tuple[str, ...], code: int, words: str
) -> None:
    create_tenant(cli)
    assert await cli("tenant", "set", *line) == code
    assert words in cli.err
    assert spec_of(cli) == SPEC


async def test_change_of_a_tenant_that_is_being_deleted_is_refused(cli: Cli) -> None:
    create_tenant(cli)
    hold(cli)
    assert await cli("tenant", "set", "alpha", "--pool", "a100:weight=3") == 4
    assert "is being deleted" in cli.err


@pytest.mark.parametrize("more", [(), ("--no-wait",)])
async def test_change_that_the_gateway_refuses_is_withdrawn(cli: Cli, more: tuple[str, ...]) -> None:
    create_tenant(cli)
    line = ("--pool", "a100:guarantee=nvidia.com/gpu=24,limit=none", "--budget", "none")
    assert await change(cli, *line, *more, answer=(REFUSED,)) == 2
    assert "the nodes have no place for the cells" in cli.err
    assert "The change was withdrawn" in cli.err
    assert spec_of(cli) == SPEC


async def test_status_writes_of_the_gateway_do_not_stop_a_change(cli: Cli) -> None:
    create_tenant(cli)
    cli.server.fail("PATCH", "/tenants/alpha", status=409, reason="Conflict")
    assert await change(cli, "--pool", "a100:weight=3") == 0, cli.err
    assert spec_of(cli)["pools"][0]["weight"] == 3.0


async def test_change_by_another_client_at_the_same_time_is_kept(cli: Cli) -> None:
    create_tenant(cli)

    def change_meanwhile() -> None:
        found = cli.server.store.get(TENANTS, "alpha")
        cli.server.store.update(TENANTS, found | {"spec": SPEC | {"budget": []}}, name="alpha")

    release = cli.server.hold("PATCH", "/tenants/alpha")
    task = asyncio.create_task(cli("tenant", "set", "alpha", "--pool", "a100:weight=3"))
    await wait_until(lambda: any(request.startswith("PATCH") for request in cli.server.requests), seconds=10)
    change_meanwhile()
    release.set()
    assert await task == 4, cli.err
    assert "changed by another client at the same time" in cli.err
    assert spec_of(cli)["pools"][0]["weight"] == 2.0
