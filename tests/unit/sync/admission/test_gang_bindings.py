"""Gangs are forwarded as a whole, after the tenant's scheduler has bound each pod."""

from __future__ import annotations

import pytest

from tests.unit.sync.admission.samples import POOL, TENANT, gang_marks, make_member
from tests.unit.sync.admission.tenant_harness import NODE, Harness
from tests.unit.sync.admission.test_admission_expiry import expire_admission
from vkgateway.scheduler.core.decisions import Admit

GANG = f"{TENANT}/default/gang/train"


def add_gang(*uids: str) -> Harness:
    """Return a tenant with an admitted and unbound gang."""
    harness = Harness(waits=False)
    for uid in uids:
        harness.add_pod(make_member(uid, marks=gang_marks(minimum=len(uids))))
    harness.admission.apply_admit(
        Admit(gang=GANG, pool=POOL, nodes=dict.fromkeys(uids, "host-1"), borrowed=True), now=harness.now
    )
    return harness


def bind_member(harness: Harness, uid: str) -> None:
    harness.admission.put_member(make_member(uid, marks=gang_marks(minimum=2), bound=True, mark="1"))


def list_verdicts(harness: Harness, *uids: str) -> list[str]:
    return [harness.admission.admission_for(uid, NODE).verdict for uid in uids]


def test_gang_is_not_forwarded_before_its_last_pod_is_bound() -> None:
    harness = add_gang("u1", "u2")
    bind_member(harness, "u1")
    assert list_verdicts(harness, "u1") == ["pending"]

    harness.looked.clear()
    bind_member(harness, "u2")
    assert list_verdicts(harness, "u1", "u2") == ["admitted", "admitted"]
    assert set(harness.looked) == {("default", "pod-u1"), ("default", "pod-u2")}


def test_single_pod_waits_for_no_other() -> None:
    harness = add_gang("u1")
    assert list_verdicts(harness, "u1") == ["admitted"]


def test_gang_with_a_member_deleted_before_binding_is_admitted_again_or_waits() -> None:
    harness = add_gang("u1", "u2")
    bind_member(harness, "u1")
    harness.pods.drop_tenant("u2")
    harness.admission.pod_changed(("default", "pod-u2"))
    assert list_verdicts(harness, "u1") == ["pending"]
    assert not harness.admission.verdict_store.verdicts


def test_gang_with_a_member_not_bound_in_time_waits_as_a_whole() -> None:
    harness = add_gang("u1", "u2")
    bind_member(harness, "u1")
    expire_admission(harness, 119)
    assert list_verdicts(harness, "u1") == ["pending"]
    expire_admission(harness, 1)
    assert not harness.admission.verdict_store.verdicts
    [left], _ = harness.admission.gangs.build_gangs()
    assert ([pod.uid for pod in left.pods], left.minimum) == (["u1"], 2)


@pytest.mark.parametrize("last", ["u1", "u2"])
def test_only_the_last_binding_of_the_gang_ends_the_wait(last: str) -> None:
    harness = add_gang("u1", "u2")
    bindings = harness.admission.bindings
    first = "u2" if last == "u1" else "u1"
    for member in (
        make_member(first, marks=gang_marks()),
        make_member(first, marks=gang_marks()),
        make_member(last, marks=gang_marks(group="default/gang/other")),
    ):
        bindings.member_bound(member)
        assert bindings.is_binding("default/gang/train")
    bindings.member_bound(make_member(last, marks=gang_marks()))
    assert not bindings.is_binding("default/gang/train")


def test_gang_of_bound_pods_waits_for_no_binding() -> None:
    harness = Harness(waits=False)
    for uid in ("u1", "u2"):
        harness.add_pod(make_member(uid, marks=gang_marks(minimum=2), bound=True))
    harness.admission.bindings.await_bindings(
        Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1", "u2": "host-1"}, borrowed=True)
    )
    assert not harness.admission.bindings.is_binding("default/gang/train")
