"""Tests of the rules by which tenants are accepted, and of the ledger that remembers whom."""

import pytest

from vkgateway.gateway.acceptance import PoolOffer, objections
from vkgateway.gateway.ledger import ACCEPTED_SPEC, Ledger
from vkgateway.model.api import (
    ComputeCluster,
    ComputeClusterSpec,
    ComputeClusterStatus,
    Pool,
    PoolStatus,
    Tenant,
    TenantPool,
    TenantSpec,
)
from vkgateway.model.objects import Meta

GPU = "nvidia.com/gpu"
TEMPLATES = ["default"]


def tenant(name: str = "alpha", *pools: TenantPool, version: str = "1.36.3", template: str = "default") -> Tenant:
    spec = TenantSpec(pools=pools, kubernetes_version=version, template=template)
    return Tenant(metadata=Meta(name=name, uid=name), spec=spec)


def guarantee(amount: str | int, *, limit: str | int | None = None, resource: str = GPU) -> TenantPool:
    limits = {} if limit is None else {resource: limit}
    return TenantPool(name="a100", guarantee={resource: amount}, limit=limits)


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
        (tenant(template="big"), "UnknownTemplate", "there are: default"),
        (tenant(version="1.29.6"), "UnknownVersion", "oldest"),
        (tenant(version="latest"), "UnknownVersion", "'latest'"),
        (tenant("alpha", TenantPool(name="h100")), "UnknownPool", "it has: a100"),
        (
            tenant("alpha", TenantPool(name="a100", compute_cluster="east")),
            "UnknownComputeCluster",
            "there are: local",
        ),
        (tenant("alpha", TenantPool(name="a100"), TenantPool(name="a100")), "DuplicatePool", "twice"),
        (tenant("alpha", guarantee("many")), "InvalidQuantity", "'many'"),
        (tenant("alpha", guarantee(-1)), "InvalidQuantity", "less than nothing"),
        (tenant("alpha", guarantee(8, limit=4)), "LimitBelowGuarantee", "guarantee of 8"),
        (tenant("alpha", guarantee(25)), "GuaranteeBeyondPool", "ask for at most 24"),
        (tenant("alpha", guarantee(1, resource="amd.com/gpu")), "GuaranteeBeyondPool", "has no amd.com/gpu"),
    ],
)
def test_what_cannot_be_had_is_refused_with_a_reason_and_a_way_out(asked: Tenant, reason: str, words: str) -> None:
    found = objections(asked, offers=OFFERS, templates=TEMPLATES)
    assert [one.reason for one in found] == [reason]
    assert words in str(found[0])


def test_what_fits_is_not_objected_to() -> None:
    asked = tenant("alpha", guarantee(24, limit=24))
    assert objections(asked, offers=OFFERS, templates=TEMPLATES) == []


def test_quantities_are_compared_by_value() -> None:
    pool = TenantPool(name="a100", guarantee={"cpu": "96000m"}, limit={"cpu": 96})
    assert objections(tenant("alpha", pool), offers=OFFERS, templates=TEMPLATES) == []


def test_guarantees_of_accepted_tenants_count_at_once() -> None:
    ledger = Ledger()
    first = ledger.decide(tenant("a", guarantee(20)), computes=[cluster()], templates=TEMPLATES)
    second = ledger.decide(tenant("b", guarantee(20)), computes=[cluster()], templates=TEMPLATES)
    assert first.good
    assert (second.reason, second.good) == ("GuaranteeBeyondPool", False)
    assert ledger.guaranteed("local", "a100") == {GPU: "20"}
    ledger.forget("a")
    assert ledger.decide(tenant("b", guarantee(20)), computes=[cluster()], templates=TEMPLATES).good


def test_a_pool_that_shrinks_takes_nothing_back_from_whom_it_was_promised() -> None:
    ledger = Ledger()
    asked = tenant("a", guarantee(20))
    assert ledger.decide(asked, computes=[cluster()], templates=TEMPLATES).good
    assert ledger.decide(asked, computes=[cluster(gpus=0)], templates=TEMPLATES).good


def test_a_refused_change_leaves_the_accepted_spec_in_force() -> None:
    ledger = Ledger()
    ledger.decide(tenant("a", guarantee(20)), computes=[cluster()], templates=TEMPLATES)
    verdict = ledger.decide(tenant("a", guarantee(40)), computes=[cluster()], templates=TEMPLATES)
    assert verdict.reason == "GuaranteeBeyondPool"
    inforce = ledger.accepted("a")
    assert inforce is not None
    assert inforce.pools[0].guarantee == {GPU: 20}


def test_guarantees_wait_until_the_pool_is_known_and_others_do_not() -> None:
    ledger = Ledger()
    unknown = [cluster(gpus=None)]
    verdict = ledger.decide(tenant("a", guarantee(1)), computes=unknown, templates=TEMPLATES)
    assert (verdict.status, verdict.trouble) == ("Unknown", False)
    assert ledger.accepted("a") is None
    assert ledger.decide(tenant("b", TenantPool(name="a100")), computes=unknown, templates=TEMPLATES).good


def test_what_was_accepted_before_a_restart_still_counts() -> None:
    before = tenant("a", guarantee(20))
    before.metadata.annotations = {ACCEPTED_SPEC: '{"pools":[{"name":"a100","guarantee":{"nvidia.com/gpu":20}}]}'}
    broken = tenant("c")
    broken.metadata.annotations = {ACCEPTED_SPEC: "{"}
    ledger = Ledger()
    ledger.load([before, broken])
    assert ledger.users("local") == ["a"]
    assert not ledger.decide(tenant("b", guarantee(20)), computes=[cluster()], templates=TEMPLATES).good
    assert ledger.decide(before, computes=[cluster(gpus=0)], templates=TEMPLATES).good
