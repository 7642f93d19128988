"""Members read from tenant pods, and the choice of pods that are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.sync.admission.samples import BORN, BORN_AT, GPU, OTHER_POOL, POOL, TENANT, PodStores, make_reference
from vkgateway.api.objects import Object
from vkgateway.runtime.views.pods import TenantPodView, decode_tenant_pod
from vkgateway.scheduler.core.snapshot import Band
from vkgateway.scheduler.gangs import Reference
from vkgateway.scheduler.gangs.mark_detection import may_be_member
from vkgateway.scheduler.governed import CORDON_TAINT, VirtualNode
from vkgateway.scheduler.service.member import GangMember, read_member

GATE = {"name": "vkgateway.io/admission"}


def make_pod(*, gpus: str = "1", metadata: Object | None = None, **spec: Any) -> Object:
    limits = {GPU: gpus} if gpus else {}
    return {
        "metadata": {
            "name": "web",
            "namespace": "default",
            "uid": "u1",
            "creationTimestamp": BORN,
            **(metadata or {}),
        },
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}], **spec},
    }


def view_of(metadata: Object, **spec: Any) -> TenantPodView:
    return decode_tenant_pod(json.dumps(make_pod(gpus="", metadata=metadata, **spec)).encode())


def read(
    document: Object, found: dict[Reference, Object] | None = None, nodes: dict[str, VirtualNode] | None = None
) -> GangMember | None:
    return read_member(
        document,
        tenant=TENANT,
        mark="m",
        bindings=PodStores().bindings(),
        look=(found or {}).get,
        nodes=nodes or {},
    )


def known_member(
    document: Object, found: dict[Reference, Object] | None = None, nodes: dict[str, VirtualNode] | None = None
) -> GangMember:
    member = read(document, found, nodes)
    assert member is not None
    return member


def test_controller_belongs_to_the_names_of_a_pod() -> None:
    owners = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "settings"},
        {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True},
    ]
    assert known_member(make_pod(metadata={"ownerReferences": owners})).name_parts == ("default", "web", "Job/train")
    assert known_member(make_pod(metadata={"ownerReferences": owners[:1]})).name_parts == ("default", "web")


def test_governed_pod_is_read_completely() -> None:
    member = known_member(make_pod(priority=7, terminationGracePeriodSeconds=5, schedulingGates=[GATE]))

    assert (member.uid, member.key, member.mark) == ("u1", ("default", "web"), "m")
    assert (member.governed, member.fault, member.gang_group) == (True, "", "default/pod/u1")
    assert member.shape.amount_of(GPU) == 1000
    assert member.pools == (POOL, OTHER_POOL)
    assert (member.band, member.priority) == (Band.GUARANTEED, 7)
    assert (member.created, member.grace) == (BORN_AT, 5.0)
    assert (member.bound, member.waiting_gates, member.companions) == (False, (), ())


def test_unset_fields_have_defaults() -> None:
    member = known_member(make_pod())
    assert (member.grace, member.priority) == (30.0, 0)
    assert known_member(make_pod(terminationGracePeriodSeconds=0)).grace == 0.0


@pytest.mark.parametrize("spec", [{"priorityClassName": "vkgateway-low"}, {"priority": -1}])
def test_low_priority_pods_are_low(spec: dict[str, Any]) -> None:
    assert known_member(make_pod(**spec)).band is Band.LOW


def test_ungoverned_pod_without_gang_is_no_member() -> None:
    assert read(make_pod(gpus="")) is None
    assert read(make_pod(gpus="0")) is None


def test_pod_with_gang_mark_is_governed_without_devices() -> None:
    member = known_member(
        make_pod(gpus="", metadata={"annotations": {"vkgateway.io/gang": "g", "vkgateway.io/gang-size": "2"}})
    )
    assert member.governed
    assert member.gang_group == "default/gang/g"


def test_spark_executor_without_devices_is_a_member_without_hold() -> None:
    member = known_member(
        make_pod(gpus="", metadata={"labels": {"spark-app-selector": "pi", "spark-role": "executor"}})
    )
    assert not member.governed
    assert member.gang_group == "default/spark/pi/executors"


def test_pod_with_invalid_marks_is_a_faulty_single_pod() -> None:
    member = known_member(
        make_pod(metadata={"annotations": {"vkgateway.io/gang": "g", "vkgateway.io/gang-size": "two"}})
    )

    assert member.marks is None
    assert "gang-size" in member.fault
    assert "two" in member.fault
    assert member.gang_group == "default/pod/u1"


def test_pools_are_the_reachable_ones_in_order_of_preference() -> None:
    liked = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 10,
                    "preference": {
                        "matchExpressions": [{"key": "vkgateway.io/pool", "operator": "In", "values": ["h100"]}]
                    },
                }
            ]
        }
    }
    assert known_member(make_pod(affinity=liked)).pools == (OTHER_POOL, POOL)
    assert known_member(make_pod(nodeSelector={"kubernetes.io/hostname": "h100.local"})).pools == (OTHER_POOL,)
    assert known_member(make_pod(nodeSelector={"zone": "none"})).pools == ()


def test_bound_pod_may_run_only_in_the_pool_of_its_node() -> None:
    member = known_member(make_pod(nodeName="h100.local"))
    assert (member.bound, member.pools) == (True, (OTHER_POOL,))
    assert known_member(make_pod(nodeName="elsewhere")).pools == ()


def test_other_gates_are_listed() -> None:
    assert known_member(make_pod(schedulingGates=[{"name": "example.com/x"}, GATE])).waiting_gates == ("example.com/x",)


def test_companion_objects_are_named_and_read() -> None:
    document = make_pod(metadata={"annotations": {"scheduling.k8s.io/group-name": "train"}})
    member = known_member(document)
    assert member.companions == (make_reference(),)
    assert member.marks is not None
    assert member.marks.missing_reference == make_reference()

    member = known_member(document, {make_reference(): {"metadata": {"name": "train"}, "spec": {"minMember": 4}}})
    assert member.marks is not None
    assert (member.marks.missing_reference, member.marks.minimum) == (None, 4)


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"vkgateway.io/gang": "g", "vkgateway.io/gang-size": "2"}},
        {"annotations": {"vkgateway.io/gang-min": "2"}, "labels": {"batch.kubernetes.io/job-name": "j"}},
        {"annotations": {"scheduling.k8s.io/group-name": "g"}},
        {"annotations": {"scheduling.volcano.sh/group-name": "g"}},
        {"labels": {"scheduling.x-k8s.io/pod-group": "g"}},
        {
            "labels": {"kueue.x-k8s.io/pod-group-name": "g"},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
        },
        {
            "labels": {
                "training.kubeflow.org/job-name": "j",
                "training.kubeflow.org/operator-name": "mpi-operator",
                "training.kubeflow.org/job-role": "launcher",
            }
        },
        {"labels": {"ray.io/cluster": "c", "ray.io/node-type": "head"}},
        {"labels": {"spark-app-selector": "s", "spark-role": "executor"}},
        {"labels": {"jobset.sigs.k8s.io/jobset-name": "j", "jobset.sigs.k8s.io/replicatedjob-name": "worker"}},
        {"labels": {"leaderworkerset.sigs.k8s.io/name": "s", "leaderworkerset.sigs.k8s.io/group-index": "0"}},
    ],
    ids=lambda metadata: next(key for marks in metadata.values() for key in marks),
)
def test_pods_with_any_kind_of_gang_mark_are_read(metadata: Object) -> None:
    """The check of labels and annotations must never exclude a pod whose complete object makes it a member."""
    member = known_member(make_pod(gpus="", metadata=metadata))
    assert member.marks is None or member.marks.integration
    assert may_be_member(view_of(metadata))


@pytest.mark.parametrize(
    "spec", [{"schedulingGroup": {"podGroupName": "g"}}, {"workloadRef": {"name": "w", "podGroup": "p"}}]
)
def test_pods_with_a_group_in_their_spec_are_read(spec: dict[str, Any]) -> None:
    assert known_member(make_pod(gpus="", **spec)).marks is not None
    assert may_be_member(view_of({}, **spec))


def test_unmarked_pods_are_not_read() -> None:
    marked = {"labels": {"app": "web"}, "annotations": {"example.com/vkgateway.io/gang": "x"}}
    assert not may_be_member(view_of(marked, schedulingGroup=None, workloadRef={}))


def test_labels_and_taints_on_virtual_nodes_restrict_pools() -> None:
    first, second = PodStores().bindings()
    nodes: dict[str, VirtualNode] = {first: ({"team": "vision"}, ()), second: ({}, (CORDON_TAINT,))}

    assert known_member(make_pod(), nodes=nodes).pools == (POOL,)
    assert known_member(make_pod(nodeSelector={"team": "vision"}), nodes=nodes).pools == (POOL,)
    assert known_member(make_pod(tolerations=[{"operator": "Exists"}]), nodes=nodes).pools == (POOL, OTHER_POOL)


def test_reason_is_known_if_no_pool_is_reachable() -> None:
    first, second = PodStores().bindings()
    closed: dict[str, VirtualNode] = {first: ({}, (CORDON_TAINT,)), second: ({}, (CORDON_TAINT,))}

    assert known_member(make_pod()).unreachable_reason == ""
    member = known_member(make_pod(), nodes=closed)
    assert (member.pools, member.unreachable_reason) == (
        (),
        f"virtual node {first} is cordoned; virtual node {second} is cordoned",
    )
