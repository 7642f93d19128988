"""Typed views: transition times of conditions, usable nodes, defaults of API types."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from vkgateway.api import times
from vkgateway.api.objects import Condition, NodeView, find_condition, is_condition_true, set_condition
from vkgateway.api.types import ComputeCluster, Tenant, TenantStatus

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


def test_transition_time_changes_only_with_status() -> None:
    first = set_condition((), Condition(type="Ready", status="False", reason="A"), now=NOW)
    same = set_condition(first, Condition(type="Ready", status="False", reason="B"), now=LATER)
    turned = set_condition(same, Condition(type="Ready", status="True", reason="C"), now=LATER)
    assert same[0].reason == "B"
    assert same[0].last_transition_time == times.render_time(NOW)
    assert turned[0].last_transition_time == times.render_time(LATER)
    assert is_condition_true(turned, "Ready")
    assert find_condition(turned, "Other") is None


def test_other_conditions_keep_their_position() -> None:
    start = [Condition(type="A", status="True"), Condition(type="B", status="True")]
    assert [entry.type for entry in set_condition(start, Condition(type="A", status="False"), now=NOW)] == ["A", "B"]
    assert [entry.type for entry in set_condition(start, Condition(type="C", status="True"), now=NOW)][-1] == "C"


def test_times_are_parsed_and_rendered() -> None:
    assert times.render_time(NOW) == "2026-03-01T12:00:00Z"
    assert times.render_micro_time(NOW) == "2026-03-01T12:00:00.123456Z"
    assert times.parse_time("2026-03-01T12:00:00.123456Z") == NOW
    assert times.parse_time("2026-03-01T13:00:00+01:00") == NOW.replace(microsecond=0)
    with pytest.raises(ValueError, match="zone"):
        times.parse_time("2026-03-01T12:00:00")


def test_ready_schedulable_node_is_usable() -> None:
    ready = b'"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"x"}]}'
    node = msgspec.json.decode(b'{"metadata":{"name":"n"},' + ready + b"}", type=NodeView)
    cordoned = msgspec.json.decode(b'{"metadata":{},"spec":{"unschedulable":true},' + ready + b"}", type=NodeView)
    assert node.is_usable
    assert not cordoned.is_usable
    assert not msgspec.json.decode(b'{"metadata":{}}', type=NodeView).is_usable


def test_tenant_has_defaults_and_accepts_numbers_as_quantities() -> None:
    data = b'{"metadata":{"name":"a"},"spec":{"pools":[{"name":"a100","guarantee":{"nvidia.com/gpu":8}}]}}'
    tenant = msgspec.json.decode(data, type=Tenant)
    assert tenant.spec.pools[0].compute_cluster == "local"
    assert tenant.spec.pools[0].guarantee == {"nvidia.com/gpu": 8}
    assert tenant.spec.policy.pod_security == "baseline"
    assert tenant.spec.policy.image_pull_secrets == ("*",)
    encoded = msgspec.json.decode(msgspec.json.encode(tenant))
    assert encoded["apiVersion"] == "vkgateway.io/v1alpha1"
    assert encoded["kind"] == "Tenant"
    assert encoded["spec"] == {"pools": [{"name": "a100", "guarantee": {"nvidia.com/gpu": 8}}]}


def test_status_is_encoded_in_full_to_reset_fields() -> None:
    assert msgspec.to_builtins(TenantStatus())["apiServer"] is None
    assert msgspec.to_builtins(TenantStatus())["phase"] == "Pending"


def test_compute_cluster_without_connection_is_the_management_cluster() -> None:
    cluster = msgspec.json.decode(b'{"metadata":{"name":"local"},"spec":{}}', type=ComputeCluster)
    assert cluster.spec.connection.kubeconfig_secret is None
