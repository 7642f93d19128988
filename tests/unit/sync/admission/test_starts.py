"""A gang that starts is forwarded as a whole: not before its tenant's scheduler has bound each of its pods."""

from __future__ import annotations

import pytest

from tests.unit.sync.admission.samples import POOL, TENANT, marks, member
from tests.unit.sync.admission.test_tenant import NODE, Made, expire
from vkgateway.arbiter.decisions import Admit
from vkgateway.sync.admission.starts import Starts

GANG = f"{TENANT}/default/gang/train"


def gang(*uids: str) -> Made:
    """A tenant with a gang of these pods, admitted and not bound."""
    made = Made(waits=False)
    for uid in uids:
        made.add(member(uid, marks=marks(minimum=len(uids))))
    made.part.admit(Admit(gang=GANG, pool=POOL, nodes=dict.fromkeys(uids, "host-1"), borrowed=True), now=made.now)
    return made


def bind(made: Made, uid: str) -> None:
    made.part.put(member(uid, marks=marks(minimum=2), bound=True, mark="1"))


def verdicts(made: Made, *uids: str) -> list[str]:
    return [made.part.ask(uid, NODE).verdict for uid in uids]


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
    made.part.changed(("default", "pod-u2"))
    assert verdicts(made, "u1") == ["pending"]
    assert not made.part.book.verdicts


def test_a_gang_of_which_one_is_not_bound_in_time_waits_as_a_whole() -> None:
    made = gang("u1", "u2")
    bind(made, "u1")
    expire(made, 119)
    assert verdicts(made, "u1") == ["pending"]
    expire(made, 1)
    assert not made.part.book.verdicts
    [left], _ = made.part.gangs.gangs()
    assert ([pod.uid for pod in left.pods], left.minimum) == (["u1"], 2)


@pytest.mark.parametrize("last", ["u1", "u2"])
def test_starts(last: str) -> None:
    starts = Starts()
    starts.begin("g", ["u1", "u2"])
    first = "u2" if last == "u1" else "u1"
    assert not starts.settle("g", first)
    assert not starts.settle("g", first)
    assert not starts.settle("other", last)
    assert starts.waits("g")
    assert starts.settle("g", last)
    assert not starts.waits("g")
    starts.begin("g", [])
    assert not starts.waits("g")
