"""Changes of a running pod: what is forwarded, that the result has no difference, and what is reported."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.translate.samples import POOL, TENANT, compute_pod, container, forward, pod
from vkgateway.api.objects import Object
from vkgateway.api.scheduling import SchedulerMarks
from vkgateway.kinds.metadata import IMAGES_ANNOTATION
from vkgateway.kinds.pods.translation.pod_diff import PodDiff, diff_pods

START: dict[str, Any] = {
    "containers": [container(resources={"requests": {"cpu": "1"}}), container("side")],
    "initContainers": [container("init")],
    "volumes": [{"name": "d", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}],
}


def changes(after: Object, current_pod: Object | None = None) -> PodDiff:
    return diff_pods(after, current_pod or compute_pod(pod(**START), {}), tenant=TENANT, pool=POOL)


def test_nothing_changed() -> None:
    assert changes(pod(**START)) == PodDiff()


def test_changed_labels_and_annotations_are_forwarded() -> None:
    after = pod(**START, metadata={"labels": {"app": "new", "b": "2"}, "annotations": {}})
    patch = changes(after).patch
    assert patch == {
        "metadata": {
            "labels": {"app": "new", "b": "2", "pod-template-hash": None},
            "annotations": {
                "example.com/note": None,
                "vkgateway.io/labels": 'app="new"\nb="2"',
                "vkgateway.io/copied": "app,b;",
            },
        }
    }


def test_derived_annotations_follow_changes() -> None:
    path = "metadata.labels['kueue.x-k8s.io/queue-name']"
    volume = {"name": "d", "downwardAPI": {"items": [{"path": "q", "fieldRef": {"fieldPath": path}}]}}
    before, after = (pod(volumes=[volume], metadata={"labels": {"kueue.x-k8s.io/queue-name": n}}) for n in ("a", "b"))
    patch = changes(after, compute_pod(before, {})).patch
    assert patch is not None
    assert list(patch["metadata"]["annotations"].values()) == ["b"]
    assert changes(before, compute_pod(before, {})) == PodDiff()


@pytest.mark.parametrize("kind", ["labels", "annotations"])
@pytest.mark.parametrize("value", ["theirs", "root.alpha", None])
def test_tenant_cannot_change_what_the_pool_sets(kind: str, value: str | None) -> None:
    """Neither by a change nor by a removal of the key on a running pod."""
    tenant = replace(TENANT, pool_keys=("queue",))
    marks = SchedulerMarks(labels={"queue": "root.alpha"}, annotations={"queue": "root.alpha"})
    before = pod(metadata={kind: {"queue": "first"}})
    current_pod = forward(before, tenant=tenant, marks=marks)
    after = pod(metadata={kind: {"queue": value} if value is not None else {}})
    patch = diff_pods(after, current_pod, tenant=tenant, pool=POOL).patch or {}
    assert all("queue" not in part for part in patch.get("metadata", {}).values())


def test_key_that_the_pool_sets_later_is_taken_from_the_tenant() -> None:
    before = pod(metadata={"labels": {"queue": "theirs"}})
    patch = diff_pods(before, forward(before), tenant=replace(TENANT, pool_keys=("queue",)), pool=POOL).patch
    assert patch is not None
    assert patch["metadata"]["labels"] == {"queue": None, "tenant-label.vkgateway.io/queue": "theirs"}


def test_additions_of_the_compute_cluster_are_kept() -> None:
    current_pod = compute_pod(pod(**START), {})
    current_pod["metadata"]["labels"] |= {"topology.kubernetes.io/zone": "z"}
    current_pod["metadata"]["annotations"] |= {"cni.example.com/ips": "10.1.2.3"}
    assert changes(pod(**START), current_pod).patch is None
    patch = changes(pod(**START, metadata={"labels": {}}), current_pod).patch
    assert patch is not None
    assert patch["metadata"]["labels"] == {"app": None, "pod-template-hash": None}


def test_a_removed_label_is_removed_after_two_changes() -> None:
    current_pod = compute_pod(pod(**START), {})
    first = pod(**START, metadata={"labels": {"x": "1"}})
    patch = changes(first, current_pod).patch
    assert patch is not None
    for kind in ("labels", "annotations"):
        merged = {**current_pod["metadata"][kind], **patch["metadata"][kind]}
        current_pod["metadata"][kind] = {key: value for key, value in merged.items() if value is not None}
    assert changes(first, current_pod).patch is None
    second = changes(pod(**START, metadata={"labels": {}}), current_pod).patch
    assert second is not None
    assert second["metadata"]["labels"] == {"x": None}


def test_ownership_is_restored() -> None:
    current_pod = compute_pod(pod(**START), {})
    current_pod["metadata"]["labels"]["vkgateway.io/pool"] = "other"
    assert changes(pod(**START), current_pod).patch == {"metadata": {"labels": {"vkgateway.io/pool": "a100"}}}


def test_gateway_annotations_are_no_change() -> None:
    current_pod = {**forward(pod(**START), compute_node="host-9", borrowed=True), "status": {}}
    current_pod["metadata"]["annotations"]["vkgateway.io/eviction-deadline"] = "2026-03-01T12:00:00Z"
    derived = {"example.com/note": "hello", "vkgateway.io/eviction-deadline": "2026-03-01T12:00:00Z"}
    let_go = pod(**START, metadata={"annotations": derived}, nodeSelector={"kubernetes.io/hostname": "a100.local"})
    assert changes(let_go, current_pod) == PodDiff()
    assert changes(pod(**START), current_pod) == PodDiff()


def test_gang_annotations_are_forwarded() -> None:
    saved = {"example.com/note": "hello", "vkgateway.io/gang-checkpoint": "1772366400"}
    after = pod(**START, metadata={"annotations": saved})
    first = changes(after)
    assert first.unsupported == ()
    assert first.patch is not None
    assert first.patch["metadata"]["annotations"]["vkgateway.io/gang-checkpoint"] == "1772366400"
    again = changes(pod(**START), compute_pod(after, {}))
    assert again.patch is not None
    assert again.patch["metadata"]["annotations"]["vkgateway.io/gang-checkpoint"] is None


def test_images_deadline_and_added_tolerations() -> None:
    after = copy.deepcopy(pod(**START))
    after["spec"]["containers"][0]["image"] = "busybox:2"
    after["spec"]["initContainers"][0]["image"] = "busybox:3"
    after["spec"]["activeDeadlineSeconds"] = 60
    extra = {"key": "mine", "operator": "Exists"}
    after["spec"]["tolerations"].append(extra)
    current_pod = compute_pod(pod(**START), {})
    added_below = {"key": "added-below", "operator": "Exists"}
    current_pod["spec"]["tolerations"] = [*current_pod["spec"]["tolerations"], added_below]
    patch = changes(after, current_pod).patch
    assert patch is not None
    assert patch["metadata"]["annotations"].keys() == {IMAGES_ANNOTATION}
    assert patch == {
        "metadata": patch["metadata"],
        "spec": {
            "containers": [{"name": "app", "image": "busybox:2"}],
            "initContainers": [{"name": "init", "image": "busybox:3"}],
            "activeDeadlineSeconds": 60,
            "tolerations": [*current_pod["spec"]["tolerations"], extra],
        },
    }


def test_image_replaced_by_the_compute_cluster_is_kept() -> None:
    """Its webhooks may only mutate new pods, and any other image would restart the container."""
    current_pod = compute_pod(pod(**START), {})
    current_pod["spec"] = copy.deepcopy(current_pod["spec"])
    for one in (*current_pod["spec"]["containers"], *current_pod["spec"]["initContainers"]):
        one["image"] = f"mirror.local/{one['image']}"
    assert changes(pod(**START), current_pod) == PodDiff()
    labelled = changes(pod(**START, metadata={"labels": {"role": "leader"}}), current_pod).patch
    assert labelled is not None
    assert "spec" not in labelled

    after = copy.deepcopy(pod(**START))
    after["spec"]["containers"][1]["image"] = "busybox:2"
    patch = changes(after, current_pod).patch
    assert patch is not None
    assert patch["spec"] == {"containers": [{"name": "side", "image": "busybox:2"}]}
    current_pod["metadata"]["annotations"] |= patch["metadata"]["annotations"]
    assert changes(after, current_pod) == PodDiff()


def test_images_are_compared_without_a_checksum_annotation() -> None:
    current_pod = compute_pod(pod(**START), {})
    current_pod["spec"] = copy.deepcopy(current_pod["spec"])
    current_pod["spec"]["containers"][0]["image"] = "busybox:0"
    del current_pod["metadata"]["annotations"][IMAGES_ANNOTATION]
    patch = changes(pod(**START), current_pod).patch
    assert patch is not None
    assert patch["spec"] == {"containers": [{"name": "app", "image": START["containers"][0]["image"]}]}


def test_toleration_seconds_may_change() -> None:
    after = copy.deepcopy(pod(**START))
    after["spec"]["tolerations"][0]["tolerationSeconds"] = 5
    current_pod = compute_pod(pod(**START), {})
    other = {**current_pod["spec"]["tolerations"][1], "key": "added-below"}
    current_pod["spec"]["tolerations"] = [*current_pod["spec"]["tolerations"], other]
    first, second = after["spec"]["tolerations"]
    assert changes(after, current_pod).patch == {"spec": {"tolerations": [first, second, other]}}
    current_pod["spec"]["tolerations"] = [dict(first), second, other]
    assert changes(after, current_pod) == PodDiff()
    del first["tolerationSeconds"]
    assert changes(after, current_pod).patch == {"spec": {"tolerations": [first, second, other]}}


def test_tolerations_that_differ_in_seconds_only_are_kept() -> None:
    start = pod(**START)
    start["spec"]["tolerations"].append({**start["spec"]["tolerations"][0], "tolerationSeconds": 5})
    assert changes(start, compute_pod(start, {})) == PodDiff()


@pytest.mark.parametrize("quantity", ["1", "1000m", 1])
def test_equal_quantity_is_no_resize(quantity: Any) -> None:
    after = copy.deepcopy(pod(**START))
    after["spec"]["containers"][0]["resources"]["requests"]["cpu"] = quantity
    assert changes(after) == PodDiff()


def test_resize_patch_contains_only_differences() -> None:
    after = copy.deepcopy(pod(**START))
    after["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}
    after["spec"]["initContainers"][0]["resources"] = {"requests": {"cpu": "3"}}
    after["spec"]["resources"] = {"limits": {"memory": "2Gi"}}
    current_pod = compute_pod(pod(**START), {})
    current_pod["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "4", "memory": "1024Mi"}
    found = changes(after, current_pod)
    assert (found.patch, found.unsupported) == (None, ())
    assert found.subresources == {
        "resize": {
            "spec": {
                "initContainers": [{"name": "init", "resources": {"requests": {"cpu": "3"}}}],
                "containers": [{"name": "app", "resources": {"requests": {"cpu": "2"}}}],
                "resources": {"limits": {"memory": "2Gi"}},
            }
        }
    }


def test_changed_resize_policy_is_included() -> None:
    policies = [[{"resourceName": "cpu", "restartPolicy": kind}] for kind in ("NotRequired", "RestartContainer")]
    start = {**START, "containers": [container(resizePolicy=policies[0])]}
    after = copy.deepcopy(pod(**start))
    after["spec"]["containers"][0] |= {"resources": {"limits": {"cpu": "1"}}, "resizePolicy": policies[1]}
    patch = changes(after, compute_pod(pod(**start), {})).subresources["resize"]
    assert patch["spec"]["containers"][0]["resizePolicy"] == policies[1]


def debugger(**more: Any) -> Object:
    return container("debug", targetContainerName="app", **more)


def test_ephemeral_containers_are_forwarded_with_the_tenants_environment() -> None:
    after = copy.deepcopy(pod(**START))
    env = [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}]
    after["spec"]["ephemeralContainers"] = [debugger(env=env)]
    found = changes(after)
    assert (found.patch, found.unsupported) == (None, ())
    (made,) = found.subresources["ephemeralcontainers"]["spec"]["ephemeralContainers"]
    assert {key: value for key, value in made.items() if key != "env"} == debugger()
    assert {"name": "N", "value": "default"} in made["env"]
    assert {"name": "KUBERNETES_SERVICE_HOST", "value": "10.213.0.1"} in made["env"]


def test_existing_ephemeral_containers_are_unchanged() -> None:
    after = copy.deepcopy(pod(**START))
    after["spec"]["ephemeralContainers"] = [debugger(), {**debugger(), "name": "second"}]
    current_pod = compute_pod(pod(**START), {})
    current_pod["spec"]["ephemeralContainers"] = [debugger(env=[])]
    (made,) = changes(after, current_pod).subresources["ephemeralcontainers"]["spec"]["ephemeralContainers"]
    assert made["name"] == "second"
    current_pod["spec"]["ephemeralContainers"].append(made)
    assert changes(after, current_pod) == PodDiff()


def test_refused_ephemeral_container_does_not_block_others() -> None:
    after = copy.deepcopy(pod(**START))
    bad = {**debugger(), "name": "root", "securityContext": {"privileged": True}}
    after["spec"]["ephemeralContainers"] = [bad, debugger()]
    found = changes(after)
    made = found.subresources["ephemeralcontainers"]["spec"]["ephemeralContainers"]
    assert [one["name"] for one in made] == ["debug"]
    (refusal,) = found.unsupported
    assert (refusal.field, refusal.rule) == ("spec.ephemeralContainers[root]", "privileged")
    assert "ephemeral container root does not start: violates PodSecurity" in refusal.message


def test_reserved_labels_set_later_are_reported_and_renamed() -> None:
    after = copy.deepcopy(pod(**START))
    after["metadata"]["labels"]["vkgateway.io/tenant"] = "beta"
    found = changes(after)
    assert [one.field for one in found.unsupported] == ["metadata.labels[vkgateway.io/tenant]"]
    assert found.patch is not None
    assert found.patch["metadata"]["labels"] == {"vkgateway.io.tenant-label.vkgateway.io/tenant": "beta"}
