"""`vkgateway tenant restore`: guarantees that other tenants got meanwhile, and changes before it."""

from __future__ import annotations

from typing import Any

from tests.unit.cli.test_tenant import Cli, cli
from vkgateway.kube.resources import TENANTS

__all__ = ["cli"]

END = "2999-01-01T00:00:00Z"


def add_tenant(cli: Cli, name: str, *, gpus: int, **spec: Any) -> None:
    """Create a tenant with a guarantee in the pool a100, which has 32 GPUs."""
    pools = [{"name": "a100", "guarantee": {"nvidia.com/gpu": gpus}}]
    manifest = {"apiVersion": "vkgateway.io/v1alpha1", "kind": "Tenant", "metadata": {"name": name}}
    cli.server.store.create(TENANTS, manifest | {"spec": {"pools": pools} | spec})


def spec_of(cli: Cli, name: str = "alpha") -> dict[str, Any]:
    found: dict[str, Any] = cli.server.store.get(TENANTS, name)["spec"]
    return found


async def test_tenant_whose_guarantee_is_taken_stays_as_it_is(cli: Cli) -> None:
    add_tenant(cli, "alpha", gpus=24, deleteAfter=END)
    add_tenant(cli, "beta", gpus=16)
    assert await cli("tenant", "restore", "alpha", "--no-wait") == 2
    assert "tenant 'alpha' is not accepted: spec.pools[0].guarantee" in cli.err
    assert "pool 'a100'" in cli.err
    assert "vkgateway tenant set alpha" in cli.err
    assert f"Its data is kept until {END}" in cli.err
    assert spec_of(cli)["deleteAfter"] == END

    assert await cli("tenant", "set", "alpha", "--pool", "a100:guarantee=nvidia.com/gpu=16") == 0
    assert "in force after `vkgateway tenant restore alpha`" in cli.err, "it does not wait"
    assert await cli("tenant", "restore", "alpha", "--no-wait") == 0
    assert "deleteAfter" not in spec_of(cli)


async def test_tenants_restored_together_must_fit_together(cli: Cli) -> None:
    add_tenant(cli, "alpha", gpus=24, deleteAfter=END)
    add_tenant(cli, "beta", gpus=24, deleteAfter=END)
    assert await cli("tenant", "restore", "alpha", "beta", "--no-wait") == 2
    assert spec_of(cli)["deleteAfter"] == spec_of(cli, "beta")["deleteAfter"] == END, "none is restored"
    assert await cli("tenant", "restore", "beta", "--no-wait") == 0


async def test_guarantee_of_a_kept_tenant_is_free_for_others(cli: Cli) -> None:
    add_tenant(cli, "alpha", gpus=24, deleteAfter=END)
    pool = ("--pool", "a100:guarantee=nvidia.com/gpu=24")
    assert await cli("tenant", "create", "beta", *pool, "--dry-run") == 0, cli.err
