"""What drivers ask about pods of tenants."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from vkgateway.tenants.controller import TenantController
from vkgateway.tenants.running_tenants import ControlPlaneChanges, RunningTenants
from vkgateway.tenants.runtime import TenantRuntime


def test_addresses_belong_to_the_tenant_to_others_or_to_none() -> None:
    running = RunningTenants()
    for name, own in (("alpha", "10.0.0.1"), ("beta", "10.0.0.2")):
        pods = SimpleNamespace(owns_address=own.__eq__)
        running.add(cast("TenantRuntime", SimpleNamespace(name=name, pods=pods)))
    changes = ControlPlaneChanges(running, cast("TenantController", None))
    found = {
        address: (changes.owns_address("alpha", address), changes.is_of_other_tenant("alpha", address))
        for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    }
    assert found == {"10.0.0.1": (True, False), "10.0.0.2": (False, True), "10.0.0.3": (False, False)}
    assert changes.is_of_other_tenant("not-running", "10.0.0.1")
