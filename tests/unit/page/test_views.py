"""Tests of what each kind of reader sees."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.fakes.page_gateway import FakeGateway, make_gang, make_tenant, small_gateway
from vkgateway.page.documents import Document
from vkgateway.page.facts import build_facts
from vkgateway.page.hub import encode_delta
from vkgateway.page.views import platform_document, tenant_document
from vkgateway.scheduler.core.reasons.gang_names import LONE_POD, gang_text, hide_gang
from vkgateway.scheduler.core.snapshot import Band


def document_of(gateway: FakeGateway, tenant: str = "", namespaces: tuple[str, ...] | None = None) -> Document:
    facts = build_facts(gateway.observe(), gateway.pod_names())
    return tenant_document(facts, tenant, namespaces) if tenant else platform_document(facts)


def gateway_with_namespaces() -> FakeGateway:
    """Return a gateway whose tenant alpha has gangs that run, wait and reserve in several namespaces."""
    gateway = small_gateway()
    gateway.add_gangs(
        [
            make_gang("alpha", "whale", namespace="research", pods=4, band=Band.LOW),
            make_gang("alpha", "sprat", namespace="prod", band=Band.LOW),
            make_gang("alpha", "shrimp", namespace="prod", each=1, band=Band.LOW),
        ]
    )
    for _ in range(3):
        gateway.run_cycle()
    return gateway


def test_operators_see_every_tenant_pool_and_node() -> None:
    sections = document_of(small_gateway()).sections
    assert set(sections["gangs"]) == {
        "beta/team/job/pretrain", "alpha/team/job/eval", "alpha/team/job/train", "beta/team/job/sweep"
    }  # fmt: skip
    assert set(sections["tenants"]) == {"alpha/a100.local/nvidia.com/gpu", "beta/a100.local/nvidia.com/gpu"}
    assert [len(sections[name]) for name in ("pools", "nodes", "clusters", "controlPlanes")] == [1, 4, 1, 2]
    waiting = sections["gangs"]["beta/team/job/sweep"]
    assert waiting.state == "waiting"
    assert waiting.code
    assert waiting.help


def test_nodes_show_who_uses_their_gpus() -> None:
    nodes = document_of(small_gateway()).sections["nodes"].values()
    assert sum(node.capacity for node in nodes) == 32
    parts = [part for node in nodes for part in node.parts]
    assert all(node.free + node.others + sum(part.units for part in node.parts) == node.capacity for node in nodes)
    assert {(part.tenant, part.borrowed) for part in parts} >= {("alpha", False), ("beta", True)}
    assert any(part.leaving for part in parts), "a guarantee is reclaimed"


@pytest.mark.parametrize(("tenant", "other"), [("alpha", "beta"), ("beta", "alpha")])
def test_a_tenant_sees_nothing_of_others(tenant: str, other: str) -> None:
    text = document_of(small_gateway(), tenant).encode()
    assert f'"{tenant}/team/job/'.encode() in text
    assert other.encode() not in text
    assert b"a100-0" not in text, "no compute node is named"
    assert not {"pools", "clusters"} & msgspec.json.decode(text).keys()


def test_a_tenant_that_does_not_exist_sees_nothing() -> None:
    sections = document_of(small_gateway(), "gamma").sections
    assert not any(sections.values())


def test_evictions_name_the_gang_that_needs_the_room_to_operators_only() -> None:
    gateway = small_gateway()
    for_whom = {entry.for_gang for entry in document_of(gateway).sections["timeline"].values() if entry.reclaim}
    assert for_whom == {"alpha/team/job/train"}
    own = document_of(gateway, "beta").sections["timeline"].values()
    evictions = [entry for entry in own if entry.kind == "evict"]
    assert [entry.for_gang for entry in evictions] == [""]
    assert evictions[0].reclaim
    assert evictions[0].deadline


def test_a_standby_shows_no_state_of_the_arbiter() -> None:
    gateway = small_gateway()
    gateway.leading = False
    document = document_of(gateway)
    assert not document.leading
    assert not document.sections["gangs"]
    assert document.sections["controlPlanes"]


@pytest.mark.parametrize("tenant", ["", "alpha", "beta"])
def test_deltas_turn_the_old_document_into_the_new_one(tenant: str) -> None:
    gateway = small_gateway()
    old = document_of(gateway, tenant)
    gateway.remove_gang("alpha/team/job/eval")
    gateway.run_cycle()
    new = document_of(gateway, tenant)
    delta = encode_delta(old, new)
    assert delta is not None
    state = msgspec.json.decode(old.encode())
    change = msgspec.json.decode(delta)
    state["time"], state["leading"] = change["time"], change["leading"]
    for section, rows in change["set"].items():
        state.setdefault(section, {}).update(rows)
    for section, rows in change["change"].items():
        for key, fields in rows.items():
            state[section][key].update(fields)
    for section, keys in change["remove"].items():
        for key in keys:
            del state[section][key]
    assert state == msgspec.json.decode(new.encode())


def test_a_delta_has_only_the_changed_fields_of_known_rows() -> None:
    gateway = small_gateway()
    old = document_of(gateway)
    gateway.tenants["alpha"] = msgspec.structs.replace(
        gateway.tenants["alpha"], status=msgspec.structs.replace(gateway.tenants["alpha"].status, phase="Degraded")
    )
    delta = msgspec.json.decode(encode_delta(old, document_of(gateway)) or b"")
    assert delta["change"] == {"controlPlanes": {"alpha": {"phase": "Degraded"}}}
    assert delta["set"] == delta["remove"] == {}


def test_no_delta_if_only_the_time_changed() -> None:
    gateway = small_gateway()
    old = document_of(gateway)
    gateway.now += 5.0
    assert encode_delta(old, document_of(gateway)) is None


@pytest.mark.parametrize("own", [("team",), ("prod",), ("research",), ("prod", "team"), ("empty",)])
def test_a_reader_of_namespaces_sees_nothing_of_others(own: tuple[str, ...]) -> None:
    gateway = gateway_with_namespaces()
    whole = document_of(gateway, "alpha").sections
    document = document_of(gateway, "alpha", own)
    assert set(document.sections["gangs"]) == {key for key, row in whole["gangs"].items() if row.namespace in own}, (
        "all of its own gangs"
    )
    assert set(document.sections["timeline"]) == {key for key, row in whole["timeline"].items() if row.namespace in own}
    text = document.encode()
    for other in {"team", "prod", "research"} - set(own):
        assert other.encode() not in text, other
    for name in ("beta", "whale", "sprat", "a100-0"):
        if not any(row.name == name for row in document.sections["gangs"].values()):
            assert name.encode() not in text, name
    assert not any(document.sections.get(name) for name in ("tenants", "nodes", "controlPlanes", "pools", "clusters"))


def test_reasons_name_no_gang_of_another_namespace() -> None:
    """A gang ahead in another namespace is a gang of another namespace, in each form of its name."""
    gateway = gateway_with_namespaces()
    facts = build_facts(gateway.observe(), gateway.pod_names())
    behind = "alpha/research/job/whale"
    reserved = "capacity is free, but reserved for gang research/whale, which is ahead"
    gangs = tuple(
        msgspec.structs.replace(row, behind=behind, message=reserved) if row.name == "sprat" else row
        for row in facts.report.gangs
    )
    facts = replace(facts, report=msgspec.structs.replace(facts.report, gangs=gangs))
    row = tenant_document(facts, "alpha", ("prod",)).sections["gangs"]["alpha/prod/job/sprat"]
    assert row.behind == ""
    assert row.message == "capacity is free, but reserved for a gang of another namespace, which is ahead"
    assert tenant_document(facts, "alpha", ("prod", "research")).sections["gangs"][row.id].message == reserved


def test_a_gang_whose_end_helps_is_named_only_to_readers_of_its_namespace() -> None:
    gateway = gateway_with_namespaces()
    facts = build_facts(gateway.observe(), gateway.pod_names())
    helps = "the end of gang research/whale is enough"
    gangs = tuple(
        msgspec.structs.replace(row, ends="alpha/research/job/whale", message=helps) if row.name == "sprat" else row
        for row in facts.report.gangs
    )
    facts = replace(facts, report=msgspec.structs.replace(facts.report, gangs=gangs))
    row = tenant_document(facts, "alpha", ("prod",)).sections["gangs"]["alpha/prod/job/sprat"]
    assert (row.ends, row.message) == ("", "the end of a gang of another namespace is enough")
    assert tenant_document(facts, "alpha", ("prod", "research")).sections["gangs"][row.id].message == helps


@pytest.mark.parametrize("kind", ["job", LONE_POD])
@pytest.mark.parametrize("pod_name", ["", "solo"])
def test_a_hidden_gang_leaves_no_name_in_any_form(kind: str, pod_name: str) -> None:
    group = f"research/{kind}/whale"
    for text in (group, gang_text(group, lambda _: pod_name), gang_text(group, lambda _: "")):
        hidden = hide_gang(f"reserved for {text}, which is ahead", f"alpha/{group}", pod_name)
        assert hidden == "reserved for a gang of another namespace, which is ahead"


def test_an_eviction_names_the_gang_that_it_is_for_only_in_own_namespaces() -> None:
    gateway = gateway_with_namespaces()
    evicted = next(entry for entry in gateway.timeline.all_entries().values() if entry.kind == "evict")
    entry = msgspec.structs.replace(evicted, tenant="alpha", namespace="prod", for_gang="alpha/research/job/whale")
    assert entry.seen_in_namespaces({"prod"}).for_gang == ""
    assert entry.seen_in_namespaces({"prod", "research"}).for_gang == "alpha/research/job/whale"
    assert entry.seen_by_tenant().for_gang == "alpha/research/job/whale"
    foreign = msgspec.structs.replace(entry, for_gang="beta/prod/job/whale")
    assert foreign.seen_in_namespaces({"prod"}).for_gang == "", "a namespace of this name of another tenant"


def test_tenant_reads_no_decisions_about_a_deleted_one_with_its_name() -> None:
    gateway = gateway_with_namespaces()
    before = gateway.tenants["alpha"]
    assert document_of(gateway, "alpha").sections["timeline"]
    assert document_of(gateway, "alpha", ("team",)).sections["timeline"]

    gateway.tenants["alpha"] = make_tenant("alpha", uid="another")
    assert document_of(gateway, "alpha").sections["timeline"] == {}
    assert document_of(gateway, "alpha", ("team",)).sections["timeline"] == {}

    gateway.add_gangs([make_gang("alpha", "new", namespace="team", each=1, band=Band.LOW)])
    for name in [name for name in gateway.gangs if name != "alpha/team/job/new"]:
        gateway.remove_gang(name)
    gateway.run_cycle()
    assert {entry.name for entry in document_of(gateway, "alpha").sections["timeline"].values()} == {"new"}
    gateway.tenants["alpha"] = before
    assert document_of(gateway, "alpha").sections["timeline"] == {}, "what the deleted tenant read is dropped"
