"""A tenant's pod as it is read for the arbiter, and which pods are read at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.sync.admission.samples import BORN, BORN_AT, GPU, OTHER_POOL, POOL, Pods, reference
from vkgateway.arbiter.snapshot import Band
from vkgateway.model.objects import Object
from vkgateway.sync.admission.member import GangMember, may_be_member, read_member
from vkgateway.sync.views.pods import TenantPodView, decode_tenant_pod
from vkgateway.translate.gangs import Reference
from vkgateway.translate.governed import CORDON_TAINT, VirtualNode

GATE = {"name": "vkgateway.io/admission"}


def pod(*, gpus: str = "1", metadata: Object | None = None, **spec: Any) -> Object:
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
    return decode_tenant_pod(json.dumps(pod(gpus="", metadata=metadata, **spec)).encode())


def read(
    document: Object, found: dict[Reference, Object] | None = None, nodes: dict[str, VirtualNode] | None = None
) -> GangMember | None:
    return read_member(document, mark="m", bindings=Pods().bindings(), look=(found or {}).get, nodes=nodes or {})


def known(
    document: Object, found: dict[Reference, Object] | None = None, nodes: dict[str, VirtualNode] | None = None
) -> GangMember:
    one = read(document, found, nodes)
    assert one is not None
    return one


def test_a_governed_pod_is_read_in_full() -> None:
    one = known(pod(priority=7, terminationGracePeriodSeconds=5, schedulingGates=[GATE]))

    assert (one.uid, one.key, one.mark) == ("u1", ("default", "web"), "m")
    assert (one.governed, one.fault, one.gang_group) == (True, "", "default/pod/u1")
    assert one.shape.amount_of(GPU) == 1000
    assert one.pools == (POOL, OTHER_POOL)
    assert (one.band, one.priority) == (Band.GUARANTEED, 7)
    assert (one.created, one.grace) == (BORN_AT, 5.0)
    assert (one.bound, one.waiting_gates, one.beside) == (False, (), ())


def test_what_a_pod_does_not_say_has_its_default() -> None:
    one = known(pod())
    assert (one.grace, one.priority) == (30.0, 0)
    assert known(pod(terminationGracePeriodSeconds=0)).grace == 0.0


@pytest.mark.parametrize("spec", [{"priorityClassName": "vkgateway-low"}, {"priority": -1}])
def test_low_pods_are_low(spec: dict[str, Any]) -> None:
    assert known(pod(**spec)).band is Band.LOW


def test_a_pod_that_asks_for_nothing_and_is_of_no_gang_is_no_member() -> None:
    assert read(pod(gpus="")) is None
    assert read(pod(gpus="0")) is None


def test_a_pod_with_the_mark_of_a_gang_is_governed_without_devices() -> None:
    one = known(pod(gpus="", metadata={"annotations": {"vkgateway.io/gang": "g", "vkgateway.io/gang-size": "2"}}))
    assert one.governed
    assert one.gang_group == "default/gang/g"


def test_an_executor_of_spark_without_devices_is_a_member_that_nothing_holds_up() -> None:
    one = known(pod(gpus="", metadata={"labels": {"spark-app-selector": "pi", "spark-role": "executor"}}))
    assert not one.governed
    assert one.gang_group == "default/spark/pi/executors"


def test_marks_that_make_no_sense_are_a_fault_and_the_pod_stands_alone() -> None:
    one = known(pod(metadata={"annotations": {"vkgateway.io/gang": "g", "vkgateway.io/gang-size": "two"}}))

    assert one.marks is None
    assert "gang-size" in one.fault
    assert "two" in one.fault
    assert one.gang_group == "default/pod/u1"


def test_pools_are_those_that_the_pod_may_reach_best_liked_first() -> None:
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
    assert known(pod(affinity=liked)).pools == (OTHER_POOL, POOL)
    assert known(pod(nodeSelector={"kubernetes.io/hostname": "h100.local"})).pools == (OTHER_POOL,)
    assert known(pod(nodeSelector={"zone": "none"})).pools == ()


def test_a_bound_pod_may_run_in_its_nodes_pool_only() -> None:
    one = known(pod(nodeName="h100.local"))
    assert (one.bound, one.pools) == (True, (OTHER_POOL,))
    assert known(pod(nodeName="elsewhere")).pools == ()


def test_gates_of_others_are_told() -> None:
    assert known(pod(schedulingGates=[{"name": "example.com/x"}, GATE])).waiting_gates == ("example.com/x",)


def test_objects_beside_a_pod_are_named_and_looked_at() -> None:
    document = pod(metadata={"annotations": {"scheduling.k8s.io/group-name": "train"}})
    one = known(document)
    assert one.beside == (reference(),)
    assert one.marks is not None
    assert one.marks.missing_reference == reference()

    one = known(document, {reference(): {"metadata": {"name": "train"}, "spec": {"minMember": 4}}})
    assert one.marks is not None
    assert (one.marks.missing_reference, one.marks.minimum) == (None, 4)


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
def test_pods_of_every_way_of_saying_a_gang_are_read_though_they_ask_for_nothing(metadata: Object) -> None:
    """What is told from labels and annotations must never leave out one whose whole object says that it is a member."""
    one = known(pod(gpus="", metadata=metadata))
    assert one.marks is None or one.marks.integration
    assert may_be_member(view_of(metadata))


@pytest.mark.parametrize(
    "spec", [{"schedulingGroup": {"podGroupName": "g"}}, {"workloadRef": {"name": "w", "podGroup": "p"}}]
)
def test_so_are_those_whose_spec_names_a_group(spec: dict[str, Any]) -> None:
    assert known(pod(gpus="", **spec)).marks is not None
    assert may_be_member(view_of({}, **spec))


def test_pods_that_nothing_marks_are_not_read() -> None:
    marked = {"labels": {"app": "web"}, "annotations": {"example.com/vkgateway.io/gang": "x"}}
    assert not may_be_member(view_of(marked, schedulingGroup=None, workloadRef={}))


def test_labels_and_taints_of_the_tenants_own_on_virtual_nodes_decide_too() -> None:
    first, second = Pods().bindings()
    nodes: dict[str, VirtualNode] = {first: ({"team": "vision"}, ()), second: ({}, (CORDON_TAINT,))}

    assert known(pod(), nodes=nodes).pools == (POOL,)
    assert known(pod(nodeSelector={"team": "vision"}), nodes=nodes).pools == (POOL,)
    assert known(pod(tolerations=[{"operator": "Exists"}]), nodes=nodes).pools == (POOL, OTHER_POOL)


def test_why_a_pod_can_go_nowhere_is_known() -> None:
    first, second = Pods().bindings()
    closed: dict[str, VirtualNode] = {first: ({}, (CORDON_TAINT,)), second: ({}, (CORDON_TAINT,))}

    assert known(pod()).nowhere == ""
    one = known(pod(), nodes=closed)
    assert (one.pools, one.nowhere) == ((), f"virtual node {first} is cordoned; virtual node {second} is cordoned")
