"""Tests of acceptance rules and of the store of accepted specs."""

from typing import Any

import pytest
from msgspec.structs import replace

from vkgateway.api.objects import Meta
from vkgateway.api.types import (
    ApiServerAccess,
    ApiServerExposure,
    ApiServerStatus,
    ComputeCluster,
    ComputeClusterSpec,
    ComputeClusterStatus,
    Pool,
    PoolStatus,
    Tenant,
    TenantBudget,
    TenantPool,
    TenantSpec,
    TenantStatus,
)
from vkgateway.scheduler.core import snapshot
from vkgateway.tenants.acceptance import PoolFactsLookup, PoolOffer, find_objections
from vkgateway.tenants.accepted_specs import ACCEPTED_SPEC_ANNOTATION, AcceptedSpecs

GPU = "nvidia.com/gpu"
TEMPLATES = ["default"]


def tenant(name: str = "alpha", *pools: TenantPool, version: str = "1.36.3", template: str = "default") -> Tenant:
    spec = TenantSpec(pools=pools, kubernetes_version=version, template=template)
    return Tenant(metadata=Meta(name=name, uid=name), spec=spec)


def guarantee(amount: str | int, *, limit: str | int | None = None, resource: str = GPU) -> TenantPool:
    limits = {} if limit is None else {resource: limit}
    return TenantPool(name="a100", guarantee={resource: amount}, limit=limits)


def cells(*sizes: int) -> TenantPool:
    return TenantPool(name="a100", guarantee={GPU: 8, "cpu": "96"}, cells=sizes)


def cluster(gpus: int | None = 32) -> ComputeCluster:
    pools = () if gpus is None else (PoolStatus(name="a100", allocatable={GPU: str(gpus), "cpu": "96"}),)
    return ComputeCluster(
        metadata=Meta(name="local"),
        spec=ComputeClusterSpec(pools=(Pool(name="a100"),)),
        status=ComputeClusterStatus(pools=pools),
    )


OFFERS = {"local": {"a100": PoolOffer({GPU: "32", "cpu": "96"}, {GPU: "8"})}}


@pytest.mark.parametrize(
    ("asked", "reason", "words"),
    [
        (tenant("Alpha"), "InvalidName", "capital"),
        (tenant(template="big"), "UnknownTemplate", "available templates: default"),
        (tenant(version="1.29.6"), "UnknownVersion", "oldest"),
        (tenant(version="latest"), "UnknownVersion", "'latest'"),
        (tenant("alpha", TenantPool(name="h100")), "UnknownPool", "available pools: a100"),
        (
            tenant("alpha", TenantPool(name="a100", compute_cluster="east")),
            "UnknownComputeCluster",
            "available compute clusters: local",
        ),
        (tenant("alpha", TenantPool(name="a100"), TenantPool(name="a100")), "DuplicatePool", "twice"),
        (tenant("alpha", guarantee("many")), "InvalidQuantity", "'many'"),
        (tenant("alpha", guarantee(-1)), "InvalidQuantity", "-1 is negative"),
        (tenant("alpha", guarantee(8, limit=4)), "LimitBelowGuarantee", "guarantee of 8"),
        (
            tenant("alpha", TenantPool(name="a100", limit={"nvidia.com/gpus": 8})),
            "UnknownResource",
            "limit[nvidia.com/gpus]: pool 'a100' of compute cluster 'local' has no nvidia.com/gpus, so the limit would "
            "have no effect; available resources: cpu, nvidia.com/gpu",
        ),
        (tenant("alpha", guarantee(25)), "GuaranteeBeyondPool", "request at most 24"),
        (tenant("alpha", guarantee(1, resource="amd.com/gpu")), "GuaranteeBeyondPool", "has no amd.com/gpu"),
        (tenant("alpha", TenantPool(name="a100", weight=0)), "InvalidQuantity", "weight: 0 is not a positive number"),
        (tenant("alpha", TenantPool(name="a100", weight=-2.5)), "InvalidQuantity", "-2.5"),
        (tenant("alpha", cells(8, -4)), "InvalidQuantity", "cell size -4"),
        (tenant("alpha", cells(8, 4)), "CellsBeyondGuarantee", "the cells add up to 12"),
    ],
)
def test_invalid_specs_are_refused_with_reason_and_way_out(asked: Tenant, reason: str, words: str) -> None:
    found = find_objections(asked, offers=OFFERS, templates=TEMPLATES)
    assert [one.reason for one in found] == [reason]
    assert words in str(found[0])


def test_limits_of_absent_resources_are_accepted_if_they_have_a_meaning() -> None:
    """Core resources may appear, a limit of zero forbids, and what was accepted stays so while nodes are away."""
    meant = TenantPool(name="a100", limit={"memory": "1Ti", "hugepages-2Mi": "1Gi", "amd.com/gpu": 0})
    assert not find_objections(tenant("alpha", meant), offers=OFFERS)
    away = {"local": {"a100": PoolOffer({"cpu": "96"})}}
    old = TenantPool(name="a100", limit={GPU: 8})
    new = TenantPool(name="a100", limit={GPU: 16})
    assert [one.reason for one in find_objections(tenant("alpha", new), offers=away)] == ["UnknownResource"]
    assert not find_objections(tenant("alpha", new), offers=away, previous=TenantSpec(pools=(old,)))
    assert not find_objections(tenant("alpha", new), offers={"local": {"a100": PoolOffer(None)}})


def test_budget_of_a_resource_that_no_pool_has_is_refused() -> None:
    asked = tenant("alpha", TenantPool(name="a100"))
    asked.spec = replace(asked.spec, budget=(TenantBudget(resource="nvidia.com/gpus", hours=10),))
    (found,) = find_objections(asked, offers=OFFERS)
    assert (found.reason, found.field) == ("UnknownResource", "spec.budget[0].resource")
    assert "available: nvidia.com/gpu" in found.message


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (TenantBudget(resource="cpu", hours=1), "'cpu' has no hours"),
        (TenantBudget(resource=GPU, hours=-1), "-1 is not a number of hours"),
        (TenantBudget(resource=GPU, hours=float("nan")), "nan is not a number of hours"),
        (TenantBudget(resource=GPU, hours=1, pool="h100"), "no pool 'h100'; its pools: a100"),
    ],
)
def test_invalid_budgets_are_refused(budget: TenantBudget, words: str) -> None:
    asked = tenant("alpha", TenantPool(name="a100"))
    asked.spec = replace(asked.spec, budget=(budget,))
    (found,) = find_objections(asked, offers=OFFERS, templates=TEMPLATES)
    assert (found.reason, words in str(found)) == ("InvalidBudget", True)


def test_one_budget_for_each_resource_and_pool() -> None:
    budgets = (TenantBudget(resource=GPU, hours=2), TenantBudget(resource=GPU, hours=1, pool="a100"))
    asked = tenant("alpha", TenantPool(name="a100"))
    asked.spec = replace(asked.spec, budget=budgets)
    assert find_objections(asked, offers=OFFERS, templates=TEMPLATES) == []
    asked.spec = replace(asked.spec, budget=(*budgets, budgets[1]))
    (found,) = find_objections(asked, offers=OFFERS, templates=TEMPLATES)
    assert "spec.budget[2]" in str(found)


def test_control_plane_is_not_downgraded_to_older_minor_version() -> None:
    runs = ApiServerStatus(url="https://10.0.0.1:20000", port=20000, version="1.35.4")

    def objections(version: str, *, runs: ApiServerStatus | None = runs, had: str = "1.36.3") -> list[str]:
        asked = tenant(version=version)
        asked.status = TenantStatus(api_server=runs)
        accepted = TenantSpec(kubernetes_version=had)
        return [one.reason for one in find_objections(asked, offers=OFFERS, templates=TEMPLATES, previous=accepted)]

    assert objections("1.34.9") == ["VersionGoesBack"]
    assert objections("1.35.1") == objections("1.36.0") == []
    assert objections("1.35.4", had="1.63.3") == []  # accepted, but never provisioned
    assert objections("1.34.9", runs=None) == []  # never provisioned
    assert objections("1.35.4", runs=ApiServerStatus(url="https://10.0.0.1:20000", port=20000)) == ["VersionGoesBack"]


def test_control_plane_is_upgraded_one_minor_version_at_a_time() -> None:
    def objections(version: str, *, runs: str) -> list[str]:
        asked = tenant(version=version)
        asked.status = TenantStatus(api_server=ApiServerStatus(url="https://a:1", port=1, version=runs))
        return [f"{one.reason}: {one.message}" for one in find_objections(asked, offers=OFFERS, templates=TEMPLATES)]

    (skips,) = objections("1.36.3", runs="1.33.13")
    assert skips == (
        "VersionSkips: the control plane runs 1.33.13, and Kubernetes is upgraded one minor version at a time; "
        "upgrade to 1.34, then 1.35, then 1.36.3"
    )
    (skips,) = objections("1.35.0", runs="1.33.13")
    assert skips.endswith("upgrade to 1.34, then 1.35.0")
    assert objections("1.34.9", runs="1.33.13") == objections("1.33.14", runs="1.33.13") == []


@pytest.mark.parametrize(
    "name", ["api.tën.ant", "api..tenant", "https://api", "a b", "-a", "fe80::1%eth0", "10.0.0.0/8"]
)
def test_invalid_certificate_names_are_refused(name: str) -> None:
    asked = Tenant(metadata=Meta(name="alpha"), spec=TenantSpec(api_server=ApiServerAccess(subject_alt_names=(name,))))
    (found,) = find_objections(asked, offers=OFFERS, templates=TEMPLATES)
    assert found.reason == "InvalidName"
    assert repr(name) in str(found)


def test_certificate_names_are_dns_names_or_addresses() -> None:
    names = ("api.example.com", "*.Tenants.example.com", "api_1", "10.0.0.1", "2001:db8::1")
    asked = Tenant(metadata=Meta(name="alpha"), spec=TenantSpec(api_server=ApiServerAccess(subject_alt_names=names)))
    assert find_objections(asked, offers=OFFERS, templates=TEMPLATES) == []


def test_fitting_spec_has_no_objections() -> None:
    asked = tenant("alpha", guarantee(24, limit=24))
    assert find_objections(asked, offers=OFFERS, templates=TEMPLATES) == []


def test_quantities_are_compared_by_value() -> None:
    pool = TenantPool(name="a100", guarantee={"cpu": "96000m"}, limit={"cpu": 96})
    assert find_objections(tenant("alpha", pool), offers=OFFERS, templates=TEMPLATES) == []


def test_accepted_guarantees_reduce_available_capacity_at_once() -> None:
    ledger = AcceptedSpecs()
    first = ledger.decide_acceptance(tenant("a", guarantee(20)), computes=[cluster()], templates=TEMPLATES)
    second = ledger.decide_acceptance(tenant("b", guarantee(20)), computes=[cluster()], templates=TEMPLATES)
    assert first.is_true
    assert (second.reason, second.is_true) == ("GuaranteeBeyondPool", False)
    assert ledger.total_guarantee("local", "a100") == {GPU: "20"}
    ledger.remove("a")
    assert ledger.decide_acceptance(tenant("b", guarantee(20)), computes=[cluster()], templates=TEMPLATES).is_true


def test_accepted_guarantee_survives_shrinking_pool() -> None:
    ledger = AcceptedSpecs()
    asked = tenant("a", guarantee(20))
    assert ledger.decide_acceptance(asked, computes=[cluster()], templates=TEMPLATES).is_true
    assert ledger.decide_acceptance(asked, computes=[cluster(gpus=0)], templates=TEMPLATES).is_true


def test_refused_change_leaves_accepted_spec_in_force() -> None:
    ledger = AcceptedSpecs()
    ledger.decide_acceptance(tenant("a", guarantee(20)), computes=[cluster()], templates=TEMPLATES)
    verdict = ledger.decide_acceptance(tenant("a", guarantee(40)), computes=[cluster()], templates=TEMPLATES)
    assert verdict.reason == "GuaranteeBeyondPool"
    inforce = ledger.spec_of("a")
    assert inforce is not None
    assert inforce.pools[0].guarantee == {GPU: 20}


def test_only_guarantees_wait_for_unknown_pool() -> None:
    ledger = AcceptedSpecs()
    unknown = [cluster(gpus=None)]
    verdict = ledger.decide_acceptance(tenant("a", guarantee(1)), computes=unknown, templates=TEMPLATES)
    assert (verdict.status, verdict.is_failure) == ("Unknown", False)
    assert ledger.spec_of("a") is None
    assert ledger.decide_acceptance(tenant("b", TenantPool(name="a100")), computes=unknown, templates=TEMPLATES).is_true


def test_accepted_specs_survive_restart() -> None:
    before = tenant("a", guarantee(20))
    before.metadata.annotations = {
        ACCEPTED_SPEC_ANNOTATION: '{"pools":[{"name":"a100","guarantee":{"nvidia.com/gpu":20}}]}'
    }
    broken = tenant("c")
    broken.metadata.annotations = {ACCEPTED_SPEC_ANNOTATION: "{"}
    ledger = AcceptedSpecs()
    ledger.load([before, broken])
    assert ledger.tenants_of("local") == ["a"]
    assert not ledger.decide_acceptance(tenant("b", guarantee(20)), computes=[cluster()], templates=TEMPLATES).is_true
    assert ledger.decide_acceptance(before, computes=[cluster(gpus=0)], templates=TEMPLATES).is_true


def nodes_of(*sizes: int, gone: int = 0) -> PoolFactsLookup:
    """Return a pool of nodes with the given GPUs, of which the first are not usable."""
    nodes = (
        snapshot.Node(name=f"n{at}", allocatable={GPU: size * 1000}, usable=at >= gone) for at, size in enumerate(sizes)
    )
    pool = snapshot.Pool(key=("local", "a100"), nodes=tuple(nodes), governed=(GPU,))
    return lambda key: pool if key == pool.key else None


def test_guarantee_is_refused_if_no_node_can_hold_its_cells() -> None:
    ledger = AcceptedSpecs(nodes_of(8, 4, 4))
    assert ledger.decide_acceptance(tenant("a", guarantee(3)), computes=[cluster()], templates=TEMPLATES).is_true
    assert ledger.decide_acceptance(tenant("b", guarantee(4)), computes=[cluster()], templates=TEMPLATES).is_true
    assert ledger.decide_acceptance(tenant("c", guarantee(1)), computes=[cluster()], templates=TEMPLATES).is_true
    cells = TenantPool(name="a100", guarantee={GPU: 4}, cells=(4,))
    assert ledger.decide_acceptance(tenant("d", cells), computes=[cluster()], templates=TEMPLATES).is_true
    verdict = ledger.decide_acceptance(tenant("e", guarantee(8)), computes=[cluster()], templates=TEMPLATES)
    assert verdict.reason == "GuaranteeBeyondPool"
    assert "tenant e requests a guarantee of 8 nvidia.com/gpu in pool local/a100" in verdict.message
    assert "the largest guarantee that fits is 4" in verdict.message
    assert ledger.decide_acceptance(tenant("e", guarantee(4)), computes=[cluster()], templates=TEMPLATES).is_true


def test_halves_of_nodes_do_not_add_up_to_whole_nodes() -> None:
    ledger = AcceptedSpecs(nodes_of(8, 4, 4))
    verdict = ledger.decide_acceptance(tenant("a", guarantee(16)), computes=[cluster()], templates=TEMPLATES)
    assert "16 in cells of 8 or more, of which other guarantees leave 8" in verdict.message
    assert "the largest guarantee that fits is 15" in verdict.message
    assert ledger.decide_acceptance(tenant("a", guarantee(15)), computes=[cluster()], templates=TEMPLATES).is_true


def test_resources_outside_the_arbiter_are_checked_by_sum() -> None:
    ledger = AcceptedSpecs(nodes_of(8, 8, 8, 8))
    pool = TenantPool(name="a100", guarantee={GPU: 8, "cpu": "97"})
    verdict = ledger.decide_acceptance(tenant("a", pool), computes=[cluster()], templates=TEMPLATES)
    assert verdict.reason == "GuaranteeBeyondPool"
    assert "request at most 96" in verdict.message


def test_explicit_cells_must_fit_pool_nodes() -> None:
    asked = tenant("a", TenantPool(name="a100", guarantee={GPU: 8}, cells=(3, 3, 2)))
    verdict = AcceptedSpecs(nodes_of(8, 8, 8, 8)).decide_acceptance(asked, computes=[cluster()], templates=TEMPLATES)
    assert "the cell sizes of the pool are 8, 4, 2, 1" in verdict.message


def test_accepted_guarantee_survives_node_failures_but_cannot_grow() -> None:
    nodes = [nodes_of(8, 8, 8, 8)]
    ledger = AcceptedSpecs(lambda key: nodes[-1](key))  # noqa: PLW0108 - it becomes another
    assert ledger.decide_acceptance(tenant("a", guarantee(32)), computes=[cluster()], templates=TEMPLATES).is_true
    nodes.append(nodes_of(8, 8, 8, 8, gone=3))
    few = [cluster(gpus=8)]
    changed = tenant("a", guarantee(32), version="1.36.9")
    assert ledger.decide_acceptance(changed, computes=few, templates=TEMPLATES).is_true
    assert ledger.decide_acceptance(tenant("a", guarantee(24)), computes=few, templates=TEMPLATES).is_true
    assert not ledger.decide_acceptance(tenant("a", guarantee(25)), computes=few, templates=TEMPLATES).is_true
    verdict = ledger.decide_acceptance(tenant("b", guarantee(8)), computes=few, templates=TEMPLATES)
    assert "do not hold the existing guarantees" in verdict.message
    assert ledger.decide_acceptance(tenant("b", TenantPool(name="a100")), computes=few, templates=TEMPLATES).is_true


def test_changed_cells_are_checked_again() -> None:
    ledger = AcceptedSpecs(nodes_of(8, 8))
    quarters = TenantPool(name="a100", guarantee={GPU: 8}, cells=(2, 2, 2, 2))
    whole = TenantPool(name="a100", guarantee={GPU: 8}, cells=(8,))
    fewer = TenantPool(name="a100", guarantee={GPU: 4}, cells=(2, 2))
    assert ledger.decide_acceptance(tenant("a", quarters), computes=[cluster()], templates=TEMPLATES).is_true
    assert ledger.decide_acceptance(tenant("b", cells_of_four()), computes=[cluster()], templates=TEMPLATES).is_true
    assert ledger.decide_acceptance(tenant("c", cells_of_four()), computes=[cluster()], templates=TEMPLATES).is_true
    assert ledger.decide_acceptance(tenant("a", whole), computes=[cluster()], templates=TEMPLATES).is_true
    assert ledger.decide_acceptance(tenant("d", guarantee(1)), computes=[cluster()], templates=TEMPLATES).reason
    ledger.remove("a")
    assert ledger.decide_acceptance(tenant("a", fewer), computes=[cluster()], templates=TEMPLATES).is_true
    assert ledger.decide_acceptance(tenant("d", guarantee(4)), computes=[cluster()], templates=TEMPLATES).is_true
    assert not ledger.decide_acceptance(tenant("a", whole), computes=[cluster()], templates=TEMPLATES).is_true


def cells_of_four() -> TenantPool:
    return TenantPool(name="a100", guarantee={GPU: 4}, cells=(4,))


def test_guarantee_waits_until_nodes_are_known() -> None:
    ledger = AcceptedSpecs(lambda _key: None)
    assert (
        ledger.decide_acceptance(tenant("a", guarantee(1)), computes=[cluster()], templates=TEMPLATES).status
        == "Unknown"
    )
    assert ledger.decide_acceptance(
        tenant("b", TenantPool(name="a100")), computes=[cluster()], templates=TEMPLATES
    ).is_true


def test_guarantee_waits_for_guaranteed_pods_in_place_of_its_cells() -> None:
    running_pods = [("a", "n2", 8000), ("a", "n0", 4000), ("b", "n1", 4000)]
    ledger = AcceptedSpecs(nodes_of(8, 8, 8), lambda key: running_pods if key == ("local", "a100") else [])
    for name, amount in (("a", 12), ("b", 4)):
        assert ledger.decide_acceptance(
            tenant(name, guarantee(amount)), computes=[cluster()], templates=TEMPLATES
        ).is_true

    verdict = ledger.decide_acceptance(tenant("c", guarantee(8)), computes=[cluster()], templates=TEMPLATES)
    assert (verdict.reason, verdict.is_true) == ("GuaranteeBeyondPool", False)
    assert "guaranteed pods run where its cells would be" in verdict.message
    assert "it is accepted when enough of them have ended" in verdict.message
    running_pods.pop()
    assert ledger.decide_acceptance(tenant("c", guarantee(8)), computes=[cluster()], templates=TEMPLATES).is_true


def test_resources_of_unmanaged_pods_cannot_be_guaranteed() -> None:
    held = [8000, 1000]
    nodes = (snapshot.Node(name=f"n{at}", allocatable={GPU: 8000}, used={GPU: used}) for at, used in enumerate(held))
    pool = snapshot.Pool(key=("local", "a100"), nodes=tuple(nodes), governed=(GPU,))
    ledger = AcceptedSpecs(lambda _key: pool)

    verdict = ledger.decide_acceptance(tenant("a", guarantee(8)), computes=[cluster()], templates=TEMPLATES)

    assert verdict.reason == "GuaranteeBeyondPool"
    assert "the largest guarantee that fits is 7; 9 are used by unmanaged pods" in verdict.message
    assert ledger.decide_acceptance(tenant("a", guarantee(7)), computes=[cluster()], templates=TEMPLATES).is_true


@pytest.mark.parametrize(
    ("exposure", "field", "message"),
    [
        ({"type": "NodePort", "hostname": "no name"}, "hostname", "'no name' is neither a DNS name"),
        ({"type": "Ingress"}, "hostname", "type Ingress needs a DNS name"),
        ({"type": "Ingress", "hostname": "192.0.2.1"}, "hostname", "type Ingress needs a DNS name"),
        ({"type": "TLSRoute", "hostname": "a.example.org"}, "gateway", "type TLSRoute needs a Gateway"),
        ({"hostname": "a.example.org"}, "hostname", "type ClusterIP does not use it"),
        ({"type": "NodePort", "load_balancer_class": "x"}, "loadBalancerClass", "or set the type to LoadBalancer"),
        (
            {"type": "Ingress", "hostname": "a.example.org", "source_ranges": ("192.0.2.0/24",)},
            "sourceRanges",
            "or set the type to LoadBalancer or NodePort",
        ),
        ({"type": "NodePort", "source_ranges": ("192.0.2.1/24",)}, "sourceRanges[0]", "'192.0.2.1/24' is not a range"),
    ],
)
def test_contradicting_exposure_is_refused(exposure: dict[str, Any], field: str, message: str) -> None:
    access = ApiServerAccess(exposure=ApiServerExposure(**exposure))
    asked = Tenant(metadata=Meta(name="alpha"), spec=TenantSpec(api_server=access))
    (objection,) = find_objections(asked, offers={})
    assert (objection.reason, objection.field) == ("InvalidExposure", f"spec.apiServer.exposure.{field}")
    assert message in objection.message
