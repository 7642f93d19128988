"""The table of growth, its meters, and its sizes."""

from __future__ import annotations

import click
import pytest

from bench.growthtable import FIGURES, RestartFigures, SizeFigures, build_outcome, growth_bend
from bench.idlemeter import (
    BUSY,
    COMPUTE,
    ETCD,
    GATEWAY,
    OTHER,
    PLAIN,
    CordonFigures,
    IdleFigures,
    parse_page,
    process_group,
)
from bench.light import Delays
from bench.objectcosts import ObjectCost
from bench.options import parse_sizes
from bench.residents import OPERATOR_EVERY, has_operator
from bench.takeover import TakeoverFigures

PAGE = """
vkgateway_api_requests_total{cluster="tenant",method="PUT"} 12.0
vkgateway_api_watches{cluster="tenant"} 70.0
vkgateway_datastore_bytes{what="in_use"} 2.097152e+06
vkgateway_datastore_bytes{what="quota"} 8e+09
vkgateway_queue_depth{tenant="alpha"} 3.0
"""


def size(tenants: int) -> SizeFigures:
    groups = dict.fromkeys((GATEWAY, ETCD, COMPUTE, OTHER, PLAIN, BUSY), 10.0 * tenants)
    idle = IdleFigures(
        pss=groups,
        cpu=groups,
        requests={("tenant", "PUT"): 0.1 * tenants, ("compute", "GET"): 1.0, ("management", "PUT"): 0.1},
        watches={"tenant": 7.0 * tenants, "compute": 9.0},
        connections=9 * tenants,
        datastore=float(tenants),
        available=2048.0,
    )
    return SizeFigures(
        tenants=tenants,
        operators=sum(map(has_operator, range(tenants))),
        idle=idle,
        cordons=CordonFigures(cpu_ms=2.0 * tenants, requests=2.0 * tenants),
        restart=RestartFigures(ready=1.0, first=0.5, last=9.0),
        takeover=TakeoverFigures(first=4.0, last=6.0, standby_pss=50.0),
        delays=Delays(forward=[0.004, 0.009], mirror=[0.003]),
    )


def test_page_of_metrics() -> None:
    page = parse_page(PAGE)
    assert page.requests == {("tenant", "PUT"): 12.0}
    assert page.watches == {"tenant": 70.0}
    assert page.datastore == 2.0


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("tenant/bench-00/apiserver", BUSY),
        ("tenant/bench-01/scheduler", PLAIN),
        (f"tenant/bench-{OPERATOR_EVERY:02d}/apiserver", BUSY),
        ("tenant/bench-104/apiserver", PLAIN),
        ("gateway", GATEWAY),
        ("compute/apiserver", COMPUTE),
        ("compute/kwok", OTHER),
    ],
)
def test_group_of_a_process(name: str, group: str) -> None:
    assert process_group(name) == group


def test_table_has_each_size_and_the_growth_per_tenant() -> None:
    outcome = build_outcome([size(10), size(20), size(40)], [], reserve_gib=2.5, seconds=60.0)
    assert outcome.columns == ["figure", "10 tenants", "20 tenants", "40 tenants", "per tenant", "bend"]
    rows = {str(row[0]): row[1:] for row in outcome.rows}
    assert rows["gateway, PSS, MiB"] == [100, 200, 400, 10, 1]
    assert rows["tenant with operator, PSS, MiB"] == [50, 50, 50, None, None]
    assert rows["requests/s to management and compute cluster"] == [1.1, 1.1, 1.1, 0, None]
    assert rows["light: forward p99, ms"] == [9, 9, 9, None, None]
    assert len(rows) == len(FIGURES)


def test_table_of_one_size_has_no_growth() -> None:
    outcome = build_outcome([size(2)], [], reserve_gib=2.5, seconds=1.0)
    assert {(row[2], row[3]) for row in outcome.rows} == {(None, None)}


def test_cost_of_pods_is_in_the_notes() -> None:
    small, large = size(10).idle, size(20).idle
    cost = ObjectCost(what="pod", count=1024, before=small, after=large)
    text = build_outcome([size(10)], [cost], reserve_gib=2.5, seconds=1.0).notes[-1]
    assert "gateway 100.0 KiB" in text
    assert "gateway +100.0 %" in text
    assert "10.0 KiB in etcd" in text


def test_bend_of_a_square() -> None:
    assert growth_bend([1, 2, 3], [1, 4, 9]) == 1.7
    assert growth_bend([1, 2, 3], [4, 4, 9]) is None


def test_sizes_of_an_option() -> None:
    assert parse_sizes("10,25") == (10, 25)
    assert parse_sizes(None) == ()


@pytest.mark.parametrize("text", ["10,x", "25,10", "0", "5,5"])
def test_bad_sizes_are_named(text: str) -> None:
    with pytest.raises(click.BadParameter, match=text):
        parse_sizes(text)
