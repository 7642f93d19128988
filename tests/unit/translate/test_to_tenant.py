"""Mirrored status: copied fields, the tenant's own fields, hidden values, and the end of a pod."""

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.fakes.patches import apply_merge_patch
from tests.unit.translate.samples import SCHEDULED, compute_pod, pod
from vkgateway.api.objects import Object
from vkgateway.kinds.pods.translation.conditions import is_disrupted
from vkgateway.kinds.pods.translation.to_tenant import (
    Disruption,
    condition_status,
    failed_status,
    final_status,
    has_ended_before,
    mirror_status,
    strategic_patch,
)

NOW = datetime(2026, 3, 1, 13, 0, tzinfo=UTC)
AT = "2026-03-01T13:00:00Z"
SINCE = "2026-03-01T12:00:05Z"
EVICTED = Disruption(reason="DeletedBelow", message="taken away")


def condition(kind: str, status: str = "True", **more: Any) -> Object:
    return {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": SINCE, **more}


def running(**more: Any) -> Object:
    """Return the status of a running compute pod."""
    return {
        "phase": "Running",
        "conditions": [
            condition(kind, observedGeneration=3)
            for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "hostIP": "192.0.2.17",
        "hostIPs": [{"ip": "192.0.2.17"}],
        "podIP": "10.1.2.3",
        "podIPs": [{"ip": "10.1.2.3"}],
        "startTime": SINCE,
        "qosClass": "Guaranteed",
        "observedGeneration": 3,
        "containerStatuses": [
            {"name": "app", "state": {"running": {"startedAt": SINCE}}, "lastState": {}, "ready": True}
        ],
        **more,
    }


def mirror(
    compute_status: Object, tenant_status: Object, tenant_pod: Object | None = None, *, observed: int = 0
) -> Object | None:
    """Mirror a status, and check that inputs are unchanged and that a second call returns nothing."""
    compute = compute_pod(tenant_pod or pod(), compute_status)
    before = copy.deepcopy((compute, tenant_status))
    node: dict[str, Any] = {"node_ip": "10.213.0.1", "node_name": "a100.local", "observed": observed}
    patch = mirror_status(compute, tenant_status, **node)
    assert (compute, tenant_status) == before
    assert mirror_status(compute, merged(tenant_status, patch), **node) is None
    return patch


def merged(status: Object, patch: Object | None) -> Object:
    """Apply a merge patch."""
    made: Object = apply_merge_patch(status, patch or {})
    return made


def kinds(patch: Object | None) -> list[str]:
    assert patch is not None
    return [entry["type"] for entry in patch["conditions"]]


PENDING: Object = {"phase": "Pending", "qosClass": "BestEffort", "conditions": [SCHEDULED]}


def test_running_pod_is_mirrored_in_one_patch() -> None:
    patch = mirror(running(fieldOfNextYear=[1]), PENDING)
    assert patch is not None
    assert patch["phase"] == "Running"
    assert patch["podIPs"] == [{"ip": "10.1.2.3"}]
    assert patch["fieldOfNextYear"] == [1]
    assert patch["containerStatuses"][0]["ready"] is True


def test_host_addresses_become_the_virtual_nodes_address() -> None:
    patch = mirror(running(), PENDING)
    assert patch is not None
    assert patch["hostIP"] == "10.213.0.1"
    assert patch["hostIPs"] == [{"ip": "10.213.0.1"}]
    assert "192.0.2" not in repr(patch)


def test_qos_class_is_not_mirrored() -> None:
    assert "qosClass" not in (mirror(running(), PENDING) or {})


@pytest.mark.parametrize(("observed", "current", "expected"), [(5, 4, 5), (0, 4, 4), (5, None, 5), (0, None, None)])
def test_observed_generation_is_the_tenant_pods(observed: int, current: int | None, expected: int | None) -> None:
    tenant_status = PENDING if current is None else {**PENDING, "observedGeneration": current}
    patch = mirror(running(), tenant_status, observed=observed)
    assert patch is not None
    assert {**tenant_status, **patch}.get("observedGeneration") == expected
    mirrored = [entry for entry in patch["conditions"] if entry["type"] != "PodScheduled"]
    assert {entry.get("observedGeneration") for entry in mirrored} == {expected}


@pytest.mark.parametrize("kind", ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"])
def test_all_container_statuses_are_mirrored(kind: str) -> None:
    state = {"name": "x", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}, "lastState": {}, "ready": False}
    patch = mirror(running(**{kind: [state]}), PENDING)
    assert patch is not None
    assert patch[kind] == [state]


def test_resize_result_is_mirrored() -> None:
    amounts = {"cpu": "2"}
    resized = {"name": "app", "state": {}, "allocatedResources": amounts, "resources": {"requests": amounts}}
    waiting = condition("PodResizePending", reason="Deferred", message="Node host-17 didn't have enough cpu")
    compute_status = running(
        containerStatuses=[resized], conditions=[waiting], resize="Deferred", allocatedResources=amounts
    )
    patch = mirror(compute_status, PENDING)
    assert patch is not None
    assert patch["containerStatuses"] == [resized]
    assert (patch["resize"], patch["allocatedResources"]) == ("Deferred", amounts)
    assert patch["conditions"][0]["message"] == "Node a100.local didn't have enough cpu"
    done = mirror(running(), merged(PENDING, patch))
    assert done is not None
    assert done["resize"] is done["allocatedResources"] is None
    assert "PodResizePending" not in kinds(done)


def test_unknown_fields_are_mirrored_and_sanitized() -> None:
    news = {"where": ["on host-17", 1], "namespace": "alpha--default", "path": "/var/lib/kubelet/x"}
    expected = {"where": ["on a100.local", 1], "namespace": "default", "path": "(a path of the node)"}
    compute_status = running(
        newsOfNextYear=news, containerStatuses=[{"name": "a", "state": {}, "newsOfNextYear": news}]
    )
    patch = mirror(compute_status, PENDING)
    assert patch is not None
    assert patch["newsOfNextYear"] == patch["containerStatuses"][0]["newsOfNextYear"] == expected


def test_messages_hide_the_host_address() -> None:
    message = 'dial tcp 192.0.2.17:10250: timeout; configmap "vkgateway-root-ca.crt" not found; moved to host-18'
    patch = mirror(running(message=message, nominatedNodeName="host-18"), PENDING)
    assert patch is not None
    assert patch["message"] == (
        'dial tcp 10.213.0.1:10250: timeout; configmap "kube-root-ca.crt" not found; moved to a100.local'
    )


def test_only_what_differs_is_patched() -> None:
    tenant_status = merged(PENDING, mirror(running(), PENDING))
    assert mirror(running(), tenant_status) is None
    assert mirror(running(podIP="10.1.2.4", podIPs=[{"ip": "10.1.2.4"}]), tenant_status) == {
        "podIP": "10.1.2.4",
        "podIPs": [{"ip": "10.1.2.4"}],
    }


def test_removed_fields_are_removed_from_the_tenant_pod() -> None:
    tenant_status = merged(PENDING, mirror(running(reason="Was", message="was"), PENDING))
    assert mirror(running(), tenant_status) == {"reason": None, "message": None}


@pytest.mark.parametrize("field", ["nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus"])
def test_compute_names_are_not_mirrored(field: str) -> None:
    patch = mirror(running(**{field: "host-17"}), PENDING)
    assert patch is not None
    assert field not in patch


def test_pod_scheduled_is_the_tenants() -> None:
    patch = mirror(running(), PENDING)
    assert patch is not None
    assert [entry for entry in patch["conditions"] if entry["type"] == "PodScheduled"] == [SCHEDULED]
    seen = mirror(running(), PENDING, observed=2)
    assert seen is not None
    assert {**SCHEDULED, "observedGeneration": 2} in seen["conditions"]
    by_hand = mirror(running(), {"phase": "Pending"})
    assert "PodScheduled" in kinds(by_hand)


def test_pool_scheduled_condition_appears_and_disappears() -> None:
    waiting = condition("PodScheduled", "False", reason="Unschedulable", message="0/4 nodes are available")
    patch = mirror({"phase": "Pending", "conditions": [waiting]}, PENDING)
    assert kinds(patch) == ["PodScheduled", "vkgateway.io/PoolScheduled"]
    assert patch is not None
    assert patch["conditions"][1]["message"] == "0/4 nodes are available"
    assert "vkgateway.io/PoolScheduled" not in kinds(mirror(running(), merged(PENDING, patch)))


def test_tenant_conditions_are_kept() -> None:
    mine = condition("example.com/mine", "False")
    patch = mirror(running(), {**PENDING, "conditions": [SCHEDULED, mine]})
    assert patch is not None
    assert patch["conditions"][-1] == mine


def test_mirrored_conditions_are_removed_with_their_source() -> None:
    tenant_status = {
        **PENDING,
        "conditions": [SCHEDULED, condition("PodResizePending"), condition("vkgateway.io/Forwarded")],
    }
    assert kinds(mirror({"phase": "Pending", "conditions": [condition("Initialized")]}, tenant_status)) == [
        "Initialized",
        "PodScheduled",
    ]


def test_ready_is_mirrored_and_gate_conditions_are_the_tenants() -> None:
    gated = pod(readinessGates=[{"conditionType": "g"}])
    compute_status = running()
    compute_status["conditions"] = [
        condition("Ready", "False", reason="ReadinessGatesNotReady"),
        condition("g", "True"),
    ]
    patch = mirror(compute_status, {**PENDING, "conditions": [SCHEDULED, condition("g", "False")]}, gated)
    assert patch is not None
    conditions = {entry["type"]: entry["status"] for entry in patch["conditions"]}
    assert conditions == {"Ready": "False", "PodScheduled": "True", "g": "False"}


def test_unset_gate_condition_is_not_mirrored() -> None:
    compute_status = running()
    compute_status["conditions"] = [*compute_status["conditions"], condition("g", "True")]
    assert "g" not in kinds(mirror(compute_status, PENDING, pod(readinessGates=[{"conditionType": "g"}])))


def test_gate_on_a_kubelet_condition_is_left_to_the_kubelet() -> None:
    gated = pod(readinessGates=[{"conditionType": "ContainersReady"}])
    assert "ContainersReady" in kinds(mirror(running(), PENDING, gated))


def test_gate_conditions_of_a_compute_webhook_are_mirrored() -> None:
    compute_status = running()
    compute_status["conditions"] = [*compute_status["conditions"], condition("target-health.elbv2.k8s.aws/x", "True")]
    assert "target-health.elbv2.k8s.aws/x" in kinds(mirror(compute_status, PENDING))


def test_messages_hide_host_namespace_uid_and_path() -> None:
    text = "back-off: pod=web-1_alpha--default(c0ffee00-0001) on host-17, not host-170: /var/lib/kubelet/pods/x/y: bad"
    compute_status = running(
        message=text,
        conditions=[condition("Ready", "False", message=text)],
        containerStatuses=[
            {"name": "a", "state": {"waiting": {"reason": "R", "message": text}}, "lastState": {}},
            {"name": "b", "state": {}, "lastState": {"terminated": {"exitCode": 1, "message": text}}},
        ],
    )
    patch = mirror(compute_status, PENDING)
    clean = "back-off: pod=web-1_default(6c5f1f7e-0001) on a100.local, not host-170: (a path of the node): bad"
    assert patch is not None
    assert patch["message"] == patch["conditions"][0]["message"] == clean
    assert patch["containerStatuses"][0]["state"]["waiting"] == {"reason": "R", "message": clean}
    assert patch["containerStatuses"][1]["lastState"]["terminated"]["message"] == clean


@pytest.mark.parametrize(("reason", "own"), [("Error", True), ("Completed", True), ("StartError", False)])
def test_messages_of_containers_are_not_changed(reason: str, own: bool) -> None:
    text = "cannot read /etc/kubernetes/mine nor set--a/b, on host-17"
    ended = {"terminated": {"exitCode": 1, "reason": reason, "message": text}}
    patch = mirror(running(containerStatuses=[{"name": "a", "state": ended, "lastState": {}}]), PENDING)
    assert patch is not None
    text = patch["containerStatuses"][0]["state"]["terminated"]["message"]
    if own:
        assert text == "cannot read /etc/kubernetes/mine nor set--a/b, on host-17"
    else:
        assert text == "cannot read (a path of the node) nor (an object elsewhere), on a100.local"


def test_containers_that_the_compute_cluster_adds_are_not_mirrored() -> None:
    def status(name: str) -> Object:
        return {"name": name, "state": {}, "lastState": {}, "ready": False}

    unready = "containers with unready status: "
    compute_status = running(
        containerStatuses=[status("app"), status("agent")],
        initContainerStatuses=[status("iptables")],
        ephemeralContainerStatuses=[status("debugger")],
        conditions=[
            condition("Ready", "False", message=f"{unready}[app agent]"),
            condition("ContainersReady", "False", message=f"{unready}[agent]"),
        ],
    )
    patch = mirror_status(compute_pod(pod(), compute_status), PENDING, node_ip="10.213.0.1", containers=("app",))
    assert patch is not None
    assert [each["name"] for each in patch["containerStatuses"]] == ["app"]
    assert patch["initContainerStatuses"] == []
    assert [each["name"] for each in patch["ephemeralContainerStatuses"]] == ["debugger"]
    messages = [entry["message"] for entry in patch["conditions"] if "message" in entry]
    assert messages == [f"{unready}[app]", "a container that the compute cluster added is not ready"]


VOLUME = "0b5c4f7e-52ab-4ab1-a8ff-2a6b0a9d1c3e"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("preempted by beta--prod/trainer-0 on the node", "preempted by (an object elsewhere) on the node"),
        ("unknown flag --v/2; see web--1 and a--b", "unknown flag --v/2; see web--1 and a--b"),
        (
            f'no such folder "/srv/disks/pvc-{VOLUME}/x": pvc-{VOLUME}',
            'no such folder "(a path of the node)": (a volume)',
        ),
    ],
)
def test_objects_of_other_tenants_are_hidden(text: str, clean: str) -> None:
    patch = mirror(running(message=text), PENDING)
    assert patch is not None
    assert patch["message"] == clean


def test_more_names_can_be_hidden() -> None:
    compute = compute_pod(pod(), {"phase": "Pending", "message": "evicted from host-3 in rack.host-3.x"})
    patch = mirror_status(compute, PENDING, node_ip="10.213.0.1", hide=["host-3"])
    assert patch is not None
    assert patch["message"] == "evicted from the node in rack.host-3.x"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_terminal_phases_are_final(phase: str) -> None:
    assert mirror(running(), {"phase": phase}) is None
    assert mirror({"phase": phase, "podIP": "10.1.2.3"}, {"phase": phase}) == {"podIP": "10.1.2.3"}


def final(compute_status: Object, tenant_status: Object = PENDING, taken: Disruption | None = None) -> Object | None:
    return final_status(
        compute_pod(pod(), compute_status), tenant_status, disruption=taken, now=NOW, node_ip="10.213.0.1"
    )


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_tenant_pod_ends_as_the_compute_pod(phase: str) -> None:
    patch = final({"phase": phase, "reason": "Done"})
    assert patch is not None
    assert (patch["phase"], patch["reason"]) == (phase, "Done")
    assert "DisruptionTarget" not in [entry["type"] for entry in patch.get("conditions", [])]


def test_disrupted_pod_has_its_condition() -> None:
    patch = final({"phase": "Failed", "conditions": [condition("Ready", "False")]}, taken=EVICTED)
    assert patch is not None
    assert (patch["reason"], patch["message"]) == ("DeletedBelow", "taken away")
    assert patch["conditions"][-1] == {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletedBelow",
        "message": "taken away",
        "lastTransitionTime": AT,
    }


def test_existing_reason_is_kept() -> None:
    target = condition("DisruptionTarget", reason="PreemptionByScheduler", message="preempted")
    patch = final({"phase": "Failed", "reason": "Evicted", "message": "m", "conditions": [target]}, taken=EVICTED)
    assert patch is not None
    assert (patch["reason"], patch["message"]) == ("Evicted", "m")
    assert [entry["reason"] for entry in patch["conditions"] if entry["type"] == "DisruptionTarget"] == [
        "PreemptionByScheduler"
    ]


def test_pod_on_a_lost_node_ends_failed_and_not_ready() -> None:
    patch = final(running(), taken=EVICTED)
    assert patch is not None
    assert patch["phase"] == "Failed"
    ready = next(entry for entry in patch["conditions"] if entry["type"] == "Ready")
    assert (ready["status"], ready["lastTransitionTime"]) == ("False", AT)


@pytest.mark.parametrize(
    ("reason", "status", "taken"),
    [
        ("PreemptionByVkgateway", "True", True),
        ("DeletionByComputeCluster", "True", True),
        ("EvictionByEvictionAPI", "True", True),
        ("PreemptionByVkgateway", "False", False),
        ("TerminationByKubelet", "True", False),
    ],
)
def test_disrupted_pods_differ_from_failed_ones(reason: str, status: str, *, taken: bool) -> None:
    conditions = [condition("Ready", "False"), condition("DisruptionTarget", status, reason=reason)]
    assert is_disrupted({"phase": "Failed", "conditions": conditions}) is taken
    assert not is_disrupted({"phase": "Failed", "conditions": conditions[:1]})
    assert not is_disrupted({"phase": "Failed"})


def test_final_status_is_written_once() -> None:
    assert final({"phase": "Failed"}, {"phase": "Succeeded"}, EVICTED) is None


def test_refused_pod_fails_once() -> None:
    def refused(status: Object) -> Object | None:
        return failed_status("Refused", "why", tenant_status=status, observed=2, now=NOW)

    ended = {"phase": "Failed", "reason": "Refused", "message": "why", "observedGeneration": 2}
    assert refused(PENDING) == {**ended, "startTime": AT}
    assert refused({**PENDING, "startTime": SINCE}) == ended
    assert refused({"phase": "Failed"}) is None


def test_condition_status() -> None:
    def set_condition(tenant_status: Object, message: str = "m") -> Object | None:
        return condition_status(
            tenant_status, "vkgateway.io/Forwarded", status="False", reason="R", message=message, now=NOW
        )

    patch = set_condition(PENDING)
    assert kinds(patch) == ["PodScheduled", "vkgateway.io/Forwarded"]
    tenant_status = merged(PENDING, patch)
    assert set_condition(tenant_status) is None
    later = set_condition(tenant_status, "other")
    assert later is not None
    assert later["conditions"][1]["lastTransitionTime"] == AT
    assert set_condition({"phase": "Failed"}) is None


def test_strategic_patch_keeps_unknown_entries() -> None:
    ready = condition("Ready", "False", reason="ContainersNotReady", message="unready: [app]")
    current = {"phase": "Running", "conditions": [ready, condition("Initialized"), condition("PodResizePending")]}
    patch = mirror(running(conditions=[condition("Initialized"), condition("Ready")]), current)
    assert patch is not None
    assert strategic_patch({"conditions": patch["conditions"], "podIPs": patch["podIPs"]}, current) == {
        "conditions": [
            {**condition("Ready"), "reason": None, "message": None},
            {"$patch": "delete", "type": "PodResizePending"},
        ],
        "podIPs": [{"$patch": "replace"}, {"ip": "10.1.2.3"}],
    }


def test_resources_that_went_are_removed() -> None:
    current = {**PENDING, "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1"}}}
    patch = mirror(running(resources={"limits": {"cpu": "1"}}), current)
    assert patch is not None
    assert patch["resources"] == {"limits": {"memory": None}, "requests": None}


def test_order_of_conditions_is_ignored() -> None:
    compute_status = running()
    current = merged(PENDING, mirror(compute_status, PENDING))
    assert mirror(compute_status, {**current, "conditions": current["conditions"][::-1]}) is None


def _ended(*ends: str | None, phase: str = "Failed", **more: Object) -> Object:
    states = [{"state": {"terminated": {"exitCode": 1, "finishedAt": end}}} for end in ends]
    return {"phase": phase, "containerStatuses": [*states, *({"state": state} for state in more.values())]}


@pytest.mark.parametrize(
    ("status", "before"),
    [
        (_ended("2026-01-01T11:59:59Z"), True),
        (_ended("2026-01-01T11:59:59Z", phase="Succeeded"), True),
        (_ended("2026-01-01T12:00:00Z"), False),
        (_ended("2026-01-01T11:00:00Z", "2026-01-01T12:00:01Z"), False),
        (_ended("2026-01-01T11:00:00Z", None), False),
        (_ended("2026-01-01T11:00:00Z", phase="Running"), False),
        (_ended("2026-01-01T11:00:00Z", still={"running": {}}), False),
        (_ended("2026-01-01T11:00:00Z", never={"waiting": {"reason": "PodInitializing"}}), True),
        ({"phase": "Failed"}, False),
        (
            {"phase": "Failed", "initContainerStatuses": _ended("2026-01-01T12:00:01Z")["containerStatuses"]},
            False,
        ),
    ],
)
def test_pod_ended_before_a_moment_only_if_all_containers_had(status: Object, before: bool) -> None:
    assert has_ended_before(status, datetime(2026, 1, 1, 12, tzinfo=UTC)) is before
