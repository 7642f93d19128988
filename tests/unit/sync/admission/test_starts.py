"""A gang that starts is forwarded as a whole: not before its tenant's scheduler has bound each of its pods."""

from __future__ import annotations

import pytest

from tests.unit.sync.admission.samples import POOL, TENANT, marks, member
from tests.unit.sync.admission.test_tenant import NODE, Made, expire
from vkgateway.arbiter.decisions import Admit
from vkgateway.sync.admission.binding_gangs import BindingGangs

GANG = f"{TENANT}/default/gang/train"


def gang(*uids: str) -> Made:
    """A tenant with a gang of these pods, admitted and not bound."""
    made = Made(waits=False)
    for uid in uids:
        made.add(member(uid, marks=marks(minimum=len(uids))))
    made.part.apply_admit(Admit(gang=GANG, pool=POOL, nodes=dict.fromkeys(uids, "host-1"), borrowed=True), now=made.now)
    return made


def bind(made: Made, uid: str) -> None:
    made.part.put_member(member(uid, marks=marks(minimum=2), bound=True, mark="1"))


def verdicts(made: Made, *uids: str) -> list[str]:
    return [made.part.admission_for(uid, NODE).verdict for uid in uids]


def test_nothing_of_a_gang_is_forwarded_before_its_last_pod_is_bound() -> None:
    made = gang("u1", "u2")
    bind(made, "u1")
    assert verdicts(made, "u1") == ["pending"]

    made.looked.clear()
    bind(made, "u2")
    assert verdicts(made, "u1", "u2") == ["admitted", "admitted"]
    assert set(made.looked) == {("default", "pod-u1"), ("default", "pod-u2")}


def test_a_lone_pod_waits_for_nobody() -> None:
    made = gang("u1")
    assert verdicts(made, "u1") == ["admitted"]


def test_a_gang_of_which_one_is_deleted_before_it_is_bound_is_admitted_again_or_not_at_all() -> None:
    made = gang("u1", "u2")
    bind(made, "u1")
    made.pods.drop_above("u2")
    made.part.pod_changed(("default", "pod-u2"))
    assert verdicts(made, "u1") == ["pending"]
    assert not made.part.verdict_store.verdicts


def test_a_gang_of_which_one_is_not_bound_in_time_waits_as_a_whole() -> None:
    made = gang("u1", "u2")
    bind(made, "u1")
    expire(made, 119)
    assert verdicts(made, "u1") == ["pending"]
    expire(made, 1)
    assert not made.part.verdict_store.verdicts
    [left], _ = made.part.gangs.build_gangs()
    assert ([pod.uid for pod in left.pods], left.minimum) == (["u1"], 2)


@pytest.mark.parametrize("last", ["u1", "u2"])
def test_starts(last: str) -> None:
    starts = BindingGangs()
    starts.await_binding("g", ["u1", "u2"])
    first = "u2" if last == "u1" else "u1"
    assert not starts.mark_bound("g", first)
    assert not starts.mark_bound("g", first)
    assert not starts.mark_bound("other", last)
    assert starts.is_binding("g")
    assert starts.mark_bound("g", last)
    assert not starts.is_binding("g")
    starts.await_binding("g", [])
    assert not starts.is_binding("g")
