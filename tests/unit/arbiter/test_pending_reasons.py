"""Pending reasons: codes, numbers and messages for waiting gangs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.simulated_cluster import (
    GPU,
    Cluster,
    make_cluster,
    make_gang,
    make_node,
    make_nodes,
    make_quota,
    reports_by_gang,
)
from vkgateway.api.objects import Taint
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import Requirement


def test_infeasible_gang_reports_largest_number_of_pods() -> None:
    cluster = make_cluster(2, make_quota("a"))
    cluster.add(make_gang("wide", "a", [8] * 3), make_gang("fits", "a", [8]))

    reports = reports_by_gang(cluster.cycle())

    assert reports["wide"].code is PendingReason.INFEASIBLE
    assert reports["wide"].numbers == {"needed": 3, "largest": 2}
    assert cluster.running_gangs() == {"fits"}


def test_oversized_pod_reports_largest_request() -> None:
    cluster = Cluster([make_node("small", 4), make_node("large", 8)], [make_quota("a")])
    cluster.add(make_gang("huge", "a", [9]), make_gang("mixed", "a", [9, 1]), make_gang("wide", "a", [8, 8]))

    reports = reports_by_gang(cluster.cycle())

    assert reports["huge"].message == (
        f"needs 1 pod of {GPU} 9; even on empty nodes, none would fit; a pod can have {GPU} 8 at most"
    )
    assert reports["mixed"].message.endswith(f"only 1 of 2 would fit; a pod can have {GPU} 8 at most")
    assert reports["wide"].message.endswith("only 1 of 2 would fit")


def test_infeasible_pod_reports_blocking_constraint() -> None:
    taint = Taint(key="team", value="b", effect="NoSchedule")
    cluster = Cluster([replace(make_node("n"), taints=(taint,))], [make_quota("a")])
    selects = ((Requirement(key="cpu", operator="In", values=("arm",)),),)
    picky = make_gang("picky", "a", [1])
    picky = replace(picky, pods=tuple(replace(pod, shape=replace(pod.shape, terms=selects)) for pod in picky.pods))
    cluster.add(picky, make_gang("kept", "a", [1]), replace(make_gang("near", "a", [1, 1]), required_level="hall"))

    reports = reports_by_gang(cluster.cycle())

    assert reports["picky"].message.endswith("none would fit; no node has the labels that its node affinity requires")
    assert reports["kept"].message.endswith("none would fit; it does not tolerate the taints of the nodes")
    assert reports["near"].message.endswith(
        "within one hall; even on empty nodes, none would fit; no node has the label hall"
    )


def test_temporarily_blocked_gang_waits_for_room() -> None:
    taken, cordoned = make_nodes(2, 8)
    cluster = Cluster([replace(taken, used={GPU: 1000}), replace(cordoned, usable=False)], [make_quota("a")])
    cluster.add(make_gang("two", "a", [8, 8]), make_gang("three", "a", [8] * 3))

    reports = reports_by_gang(cluster.cycle())

    assert reports["two"].code is PendingReason.ROOM
    assert reports["three"].code is PendingReason.INFEASIBLE


def test_each_gang_reports_how_many_pods_fit_now() -> None:
    cluster = make_cluster(2, make_quota("a"), make_quota("b"))
    cluster.add(make_gang("runs", "a", [5, 5]))
    cluster.cycle()
    wants = {"threes": [3] * 3, "more threes": [3] * 4, "fours": [4] * 3, "mixed": [3, 4, 4], "four": [4]}
    cluster.add(*(make_gang(f"{name} of {tenant}", tenant, wants[name]) for name in wants for tenant in "ab"))

    reports = reports_by_gang(cluster.cycle())

    summaries = {
        name: (report.code, report.numbers["needed"], report.numbers["fit"]) for name, report in reports.items()
    }
    fits = {"threes": (3, 2), "more threes": (4, 2), "fours": (3, 0), "mixed": (3, 1), "four": (1, 0)}
    assert summaries == {f"{name} of {tenant}": (PendingReason.ROOM, *fits[name]) for name in fits for tenant in "ab"}


def test_incomplete_gang_waits_for_members() -> None:
    cluster = make_cluster(2, make_quota("a"))
    cluster.add(make_gang("part", "a", [1, 1], minimum=3))

    report = reports_by_gang(cluster.cycle())["part"]

    assert (report.code, report.message) == (PendingReason.MEMBERS, "2 of 3 pods created")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"minimum": 0}, "its minimum is 0"),
        ({"role_minimum": {"ps": -1}}, "its minimum of ps is -1"),
        ({"run_limit": -5.0}, "its run limit is -5 s"),
        ({"pools": ()}, "no pool"),
    ],
)
def test_contradicting_annotations_are_reported(fields: dict[str, object], says: str) -> None:
    cluster = make_cluster(1, make_quota("a"))
    cluster.add(make_gang("odd", "a", [1], **fields))

    report = reports_by_gang(cluster.cycle())["odd"]

    assert report.code is PendingReason.INVALID
    assert says in report.message


def test_messages_name_no_other_tenant() -> None:
    cluster = make_cluster(3, make_quota("acme", weight=100.0), make_quota("b"))
    cluster.add(make_gang("b/ns/pod/small", "b", [1]))
    cluster.add(make_gang("acme/ns/gang/runs", "acme", [8], run_limit=1500.0))
    cluster.cycle()
    cluster.add(
        make_gang("acme/ns/gang/wide", "acme", [8, 8], created=1.0, priority=9),
        make_gang("acme/ns/gang/long", "acme", [8], created=2.0, run_limit=5000.0),
        make_gang("b/ns/gang/long", "b", [8], created=3000.0, run_limit=5000.0),
    )
    reports = reports_by_gang(cluster.cycle())

    own, other = reports["acme/ns/gang/long"], reports["b/ns/gang/long"]
    assert own.message == "capacity is free, but reserved for ns/gang/wide, which is ahead and starts in about 30 min"
    assert "another tenant's gang" in other.message
    assert own.behind == other.behind == "acme/ns/gang/wide"
    assert all("acme" not in report.message and "n0" not in report.message for report in (own, other))


def test_message_stays_the_same_for_a_while() -> None:
    cluster = make_cluster(2, make_quota("a"), make_quota("b"))
    cluster.add(make_gang("runs", "a", [8], run_limit=1200.0))
    cluster.cycle()
    cluster.add(make_gang("wide", "a", [8, 8], created=1.0), make_gang("long", "a", [8], created=2.0, run_limit=5000.0))
    messages = set()
    for _ in range(25):
        messages.add(reports_by_gang(cluster.cycle())["long"].message)
        cluster.advance(14)

    assert len(messages) == 2, messages
