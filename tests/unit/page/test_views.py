"""Tests of what each kind of reader sees."""

from __future__ import annotations

import msgspec
import pytest

from tests.fakes.page_gateway import FakeGateway, small_gateway
from vkgateway.page.deltas import encode_delta
from vkgateway.page.documents import Document
from vkgateway.page.facts import build_facts
from vkgateway.page.views import platform_document, tenant_document


def document_of(gateway: FakeGateway, tenant: str = "") -> Document:
    facts = build_facts(gateway.observe(), gateway.pod_names())
    return tenant_document(facts, tenant) if tenant else platform_document(facts)


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
