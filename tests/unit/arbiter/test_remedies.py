"""Each pending reason in each band: its message has the numbers that decide, and its advice is true.

Advice is true if the arbiter, after it was followed, starts the gang or gives another reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import pytest

from tests.unit.arbiter.simulated_cluster import (
    GPU,
    LOW,
    Cluster,
    make_cluster,
    make_gang,
    make_quota,
    reports_by_gang,
)
from vkgateway.scheduler.core.decisions import PendingReason, PendingReport
from vkgateway.scheduler.core.reasons.advice import ADVICE, advice_for
from vkgateway.scheduler.core.snapshot import GUARANTEED, Band, Pod

NOVEMBER = 1_795_000_000.0
"""18 November 2026."""

Change = Callable[[Cluster], None]


@dataclass(frozen=True)
class Case:
    """A cluster in which the gang `waits` waits for one reason, and what its message and its advice say."""

    reason: PendingReason
    band: Band
    build: Callable[[Band], Cluster]
    says: str
    """Part of the message: the numbers."""
    advice: str
    """Part of the advice for the band."""
    helps: Mapping[str, Change] = field(default_factory=dict)
    """What the advice or the message names besides larger limits and guarantees, and the ends of gangs."""
    names: frozenset[str] = frozenset()
    """What the message names: `limit`, `guarantee` or `end`."""
    useless: Mapping[str, Change] = field(default_factory=dict)
    """What the advice for the other band names, and what does not help here."""


def set_quota(cluster: Cluster, **fields: object) -> None:
    cluster.quotas = tuple(
        replace(quota, **fields) if quota.tenant == "a" else quota  # type: ignore[arg-type]
        for quota in cluster.quotas
    )


def change_gang(cluster: Cluster, **fields: object) -> None:
    cluster.gangs["waits"] = replace(cluster.gangs["waits"], **fields)  # type: ignore[arg-type]


def more(**fields: object) -> Change:
    return lambda cluster: set_quota(cluster, **fields)


def gang(**fields: object) -> Change:
    return lambda cluster: change_gang(cluster, **fields)


def end_of(name: str) -> Change:
    def change(cluster: Cluster) -> None:
        del cluster.gangs[name]

    return change


def smaller(*gpus: int) -> Change:
    pods = make_gang("waits", "a", list(gpus)).pods
    return gang(pods=pods, minimum=len(pods))


def use_free_guarantee(cluster: Cluster) -> None:
    end_of("web")(cluster)
    change_gang(cluster, band=GUARANTEED)


def at_limit(band: Band) -> Cluster:
    cluster = make_cluster(3, make_quota("a", limit=8))
    cluster.add(make_gang("web", "a", [3], minimum_run=1e6), make_gang("db", "a", [2], minimum_run=1e6))
    cluster.run_for(1)
    cluster.add(make_gang("waits", "a", [6], band=band))
    return cluster


def without_quota(band: Band) -> Cluster:
    cluster = make_cluster(1, make_quota("b"))
    cluster.add(make_gang("waits", "a", [6], band=band))
    return cluster


def beyond_budget(band: Band) -> Cluster:
    cluster = make_cluster(3, replace(make_quota("a", 8), stopped=(GPU,), budget_hours={GPU: 100}), now=NOVEMBER)
    cluster.add(make_gang("web", "a", [3]))
    cluster.run_for(1)
    cluster.add(make_gang("waits", "a", [8], band=band))
    return cluster


def beyond_budget_on_full_nodes(band: Band) -> Cluster:
    """The sum of the guarantee suffices, its nodes do not."""
    cluster = make_cluster(
        3, replace(make_quota("a", 8, cells=(4, 4)), stopped=(GPU,)), make_quota("b", 4), size=4, now=NOVEMBER
    )
    cluster.add(make_gang("web", "a", [3]))
    cluster.run_for(1)
    cluster.add(make_gang("waits", "a", [3, 2], band=band))
    return cluster


def full_pool(band: Band) -> Cluster:
    cluster = make_cluster(3, make_quota("a", 8), make_quota("b"))
    cluster.add(make_gang("web", "a", [3]))
    cluster.run_for(1)
    cluster.add(make_gang("other", "b", [8, 8], priority=9))
    cluster.run_for(1)
    cluster.add(make_gang("waits", "a", [8], band=band))
    return cluster


def behind_reservation(band: Band) -> Cluster:
    cluster = make_cluster(2, make_quota("a"))
    cluster.add(make_gang("runs", "a", [8], run_limit=1200.0))
    cluster.run_for(1)
    cluster.add(
        make_gang("wide", "a", [8, 8], created=1.0),
        make_gang("waits", "a", [8], created=2.0, run_limit=5000.0, band=band),
    )
    return cluster


def behind_reserved_limit(band: Band) -> Cluster:
    cluster = make_cluster(2, make_quota("a", limit=8), now=NOVEMBER)
    cluster.add(make_gang("runs", "a", [2], minimum_run=1e6, created=NOVEMBER - 3600, band=band))
    cluster.run_for(1)
    cluster.add(make_gang("big", "a", [8], created=NOVEMBER - 7200, band=band), make_gang("waits", "a", [1], band=band))
    return cluster


def at_maximum(band: Band) -> Cluster:
    cluster = make_cluster(2, make_quota("a"))
    cluster.add(make_gang("waits", "a", [2, 2, 2], minimum=1, elastic=True, maximum=2, band=band))
    cluster.run_for(1)
    return cluster


def without_members(band: Band) -> Cluster:
    cluster = make_cluster(1, make_quota("a"))
    cluster.add(make_gang("waits", "a", [1, 1], minimum=3, band=band))
    return cluster


def add_member(cluster: Cluster) -> None:
    pods = cluster.gangs["waits"].pods
    change_gang(cluster, pods=(*pods, Pod(uid="waits-2", shape=pods[0].shape, rank=2)))


def notified_victims(band: Band) -> Cluster:
    cluster = make_cluster(1, make_quota("a"))
    cluster.add(make_gang("low", "a", [8], band=LOW))
    cluster.run_for(1)
    cluster.add(make_gang("waits", "a", [8], priority=9, band=band))
    return cluster


def too_wide(band: Band) -> Cluster:
    cluster = make_cluster(2, make_quota("a"))
    cluster.add(make_gang("waits", "a", [8, 8, 8], band=band))
    return cluster


def too_wide_for_reserve(band: Band) -> Cluster:
    cluster = make_cluster(2, make_quota("a", 8), reserve=4)
    cluster.add(make_gang("waits", "a", [8, 8], band=band))
    return cluster


def contradicting(band: Band) -> Cluster:
    cluster = make_cluster(1, make_quota("a"))
    cluster.add(make_gang("waits", "a", [1], minimum=0, band=band))
    return cluster


USED_UP = f"the budget of November for 100 hours of {GPU} is used up: "
USED = f"in use of the guarantee in pool.compute: {GPU} 3 of 8; a guarantee of {GPU} 11 or the end of web is enough"
EVERYTHING = frozenset({"guarantee", "end"})
BUDGET = {"higher budget": more(stopped=())}

CASES = (
    *(
        Case(
            PendingReason.QUOTA,
            band,
            at_limit,
            f"needs {GPU} 6; in use in pool.compute: {GPU} 5; limit: {GPU} 8; a limit of {GPU} 11 or the end of web is",
            "an admin raises the limit",
            names=frozenset({"limit", "end"}),
        )
        for band in Band
    ),
    *(
        Case(
            PendingReason.QUOTA,
            band,
            without_quota,
            "a has no quota in pool.compute; an admin can add it to the Tenant",
            "must be added to the Tenant",
            {"quota": lambda cluster: setattr(cluster, "quotas", (make_quota("a"),))},
        )
        for band in Band
    ),
    Case(
        PendingReason.BUDGET,
        GUARANTEED,
        beyond_budget,
        f"{USED_UP}only the guarantee is available until 1 December (UTC); needs {GPU} 8; {USED}",
        "pods inside the guarantee end, when an admin raises the guarantee or spec.budget",
        BUDGET,
        EVERYTHING,
    ),
    Case(
        PendingReason.BUDGET,
        GUARANTEED,
        beyond_budget_on_full_nodes,
        f"{GPU} 3 of 8; the end of web is enough",
        "raises the guarantee",
        BUDGET,
        frozenset({"end"}),
    ),
    Case(
        PendingReason.BUDGET,
        LOW,
        beyond_budget,
        f"{USED_UP}needs {GPU} 8, and low-priority pods do not use the guarantee: none starts until 1 December (UTC)",
        "Without a low priority class, it could start inside the guarantee.",
        BUDGET | {"no low priority class": use_free_guarantee},
        useless={"larger guarantee": more(guarantee={GPU: 24_000}), "end": end_of("web")},
    ),
    Case(
        PendingReason.ROOM,
        GUARANTEED,
        full_pool,
        f"needs 1 pod of {GPU} 8; 0 of 1 would fit now; {USED}",
        "A gang that fits the guarantee starts by eviction of borrowing pods",
        {"free nodes": end_of("other"), "smaller pods": smaller(5)},
        EVERYTHING,
    ),
    Case(
        PendingReason.ROOM,
        LOW,
        full_pool,
        f"needs 1 pod of {GPU} 8; 0 of 1 would fit now",
        "Nodes must become free. Low-priority pods do not use the guarantee",
        {"free nodes": end_of("other"), "smaller pods": smaller(5)},
        useless={"larger guarantee": more(guarantee={GPU: 16_000})},
    ),
    Case(
        PendingReason.RESERVATION,
        GUARANTEED,
        behind_reservation,
        "reserved for wide, which is ahead and starts in about 20 min",
        "with a run limit (annotation vkgateway.io/gang-run-limit) that ends before it",
        {"run limit": gang(run_limit=1000.0), "priority": gang(priority=99)},
    ),
    *(
        Case(
            PendingReason.RESERVATION,
            band,
            behind_reserved_limit,
            f"the limit in pool.compute is reserved for big, which is ahead and has waited for long; "
            f"a limit of {GPU} 11 is enough",
            "A higher priority puts it ahead",
            {"priority": gang(priority=99)},
            frozenset({"limit"}),
        )
        for band in Band
    ),
    *(
        Case(
            PendingReason.MAXIMUM,
            band,
            at_maximum,
            "has 2 pods and a maximum of 2; 1 more waits until one of these terminates, or the maximum is 3",
            "Raise the annotation vkgateway.io/gang-elastic-max",
            {"maximum": gang(maximum=3)},
        )
        for band in Band
    ),
    *(
        Case(
            PendingReason.MEMBERS,
            band,
            without_members,
            "2 of 3 pods created",
            "pods are missing",
            {"another pod": add_member},
        )
        for band in Band
    ),
    *(
        Case(
            PendingReason.EVICTION,
            band,
            notified_victims,
            "starts on 1 node when 1 pod has terminated",
            "No action is needed.",
            {"time": lambda cluster: cluster.run_for(60)},
        )
        for band in Band
    ),
    *(
        Case(
            PendingReason.INFEASIBLE,
            band,
            too_wide,
            f"needs 3 pods of {GPU} 8; even on empty nodes, only 2 of 3 would fit",
            "fewer pods",
            {"fewer pods": smaller(8, 8), "smaller pods": smaller(4, 4, 4)},
        )
        for band in Band
    ),
    Case(
        PendingReason.INFEASIBLE,
        GUARANTEED,
        too_wide_for_reserve,
        f"keeps {GPU} 4 idle for guarantees, too much for a gang of this size to borrow; "
        f"in use of the guarantee in pool.compute: {GPU} 0 of 8; a guarantee of {GPU} 16 is enough",
        "fewer pods",
        {"fewer pods": smaller(8)},
        frozenset({"guarantee"}),
    ),
    Case(
        PendingReason.INFEASIBLE,
        LOW,
        too_wide_for_reserve,
        f"keeps {GPU} 4 idle for guarantees, too much for a gang of this size to borrow",
        "fewer pods",
        {"fewer pods": smaller(8)},
        useless={"larger guarantee": more(guarantee={GPU: 16_000})},
    ),
    *(
        Case(
            PendingReason.INVALID,
            band,
            contradicting,
            "its minimum is 0; it must be 1 or more",
            "Correct them on its pods",
            {"minimum": gang(minimum=1)},
        )
        for band in Band
    ),
)


def report_of(cluster: Cluster) -> PendingReport:
    return reports_by_gang(cluster.cycle())["waits"]


def reason_after(case: Case, change: Change) -> PendingReason | None:
    """Return the reason for which the gang waits after the change; None: it does not."""
    cluster = case.build(case.band)
    cluster.cycle()
    change(cluster)
    cluster.run_for(60)
    report = reports_by_gang(cluster.cycle()).get("waits")
    return report.code if report is not None else None


def waits_for(case: Case, change: Change) -> bool:
    """Return whether the gang, after the change, still waits for the case's reason."""
    return reason_after(case, change) is case.reason


def named_changes(report: PendingReport) -> dict[str, Change]:
    """Return the changes that a message names, with its numbers."""
    found: dict[str, Change] = {}
    for name, units in re.findall(rf"a (limit|guarantee) of {GPU} (\d+)\b(?! in cells)", report.message):
        found[name] = more(**{name: {GPU: int(units) * 1000}})
    if report.ends:
        assert f"the end of {report.ends} " in report.message
        found["end"] = end_of(report.ends)
    return found


def test_the_table_has_every_reason_in_every_band() -> None:
    assert {(case.reason, case.band) for case in CASES} == set(product(PendingReason, Band))
    assert ADVICE.keys() == set(PendingReason)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.reason}-{case.band}-{case.build.__name__}")
def test_message_has_the_numbers_and_its_advice_is_true(case: Case) -> None:
    report = report_of(case.build(case.band))

    assert report.code is case.reason
    assert case.says in report.message
    assert case.advice in advice_for(report.code, case.band)
    changes = named_changes(report)
    assert changes.keys() == case.names
    assert [name for name, change in (changes | dict(case.helps)).items() if waits_for(case, change)] == []
    assert [name for name, change in case.useless.items() if not waits_for(case, change)] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.reason}-{case.band}-{case.build.__name__}")
def test_one_unit_less_is_not_enough(case: Case) -> None:
    message = report_of(case.build(case.band)).message
    for name, units in re.findall(rf"a (limit|guarantee) of {GPU} (\d+)\b(?! in cells)", message):
        assert reason_after(case, more(**{name: {GPU: int(units) * 1000 - 1000}})) is not None


def test_the_end_of_the_smallest_gang_that_suffices_is_named() -> None:
    cluster = make_cluster(3, replace(make_quota("a", 16), stopped=(GPU,)))
    cluster.add(*(make_gang(name, "a", [size]) for name, size in (("large", 8), ("medium", 5), ("small", 2))))
    cluster.run_for(1)
    cluster.add(make_gang("waits", "a", [4]))
    assert report_of(cluster).ends == "medium"


def test_no_gang_is_named_if_no_single_end_suffices() -> None:
    cluster = make_cluster(3, replace(make_quota("a", 8), stopped=(GPU,)))
    cluster.add(make_gang("one", "a", [4]), make_gang("two", "a", [4]))
    cluster.run_for(1)
    cluster.add(make_gang("waits", "a", [8]))
    report = report_of(cluster)
    assert report.ends == ""
    assert f"a guarantee of {GPU} 16 is enough" in report.message


def test_a_guarantee_that_the_nodes_or_the_limit_do_not_hold_is_not_named() -> None:
    for cluster in (
        make_cluster(1, replace(make_quota("a", 8), stopped=(GPU,)), make_quota("b")),
        make_cluster(3, replace(make_quota("a", 8, limit=16), stopped=(GPU,)), make_quota("b", 16)),
    ):
        cluster.add(make_gang("web", "a", [8]))
        cluster.run_for(1)
        cluster.add(make_gang("waits", "a", [4]))
        message = report_of(cluster).message
        assert f"{GPU} 8 of 8; the end of web is enough" in message


def test_a_gang_that_fits_its_guarantee_reads_nothing_about_it() -> None:
    """It waits for nodes: another guarantee would not help."""
    cluster = make_cluster(1, make_quota("a", 8), make_quota("b"))
    cluster.pool = replace(cluster.pool, nodes=tuple(replace(node, used={GPU: 8000}) for node in cluster.pool.nodes))
    cluster.add(make_gang("waits", "a", [8]))
    report = report_of(cluster)
    assert report.code is PendingReason.ROOM
    assert "a guarantee of" not in report.message


@pytest.mark.parametrize("band", Band)
def test_a_budget_of_no_hours_is_not_there_next_month_either(band: Band) -> None:
    cluster = beyond_budget(band)
    set_quota(cluster, budget_hours={GPU: 0})
    report = report_of(cluster)
    assert report.message.startswith(f"the budget of November for 0 hours of {GPU} is used up: ")
    assert "December" not in report.message
    assert report.numbers[f"budget {GPU}"] == 0
