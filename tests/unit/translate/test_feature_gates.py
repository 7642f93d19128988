"""Feature-gated fields: which count, their paths, and the message about them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.fields import without_fields
from tests.unit.translate.samples import container, forward, pod
from vkgateway.kinds.pods.policy.feature_gates import (
    FeatureGatedField,
    feature_gated_fields,
    lost_fields_message,
)
from vkgateway.kinds.pods.translation.subresources import drop_lost_containers

GUARDED: list[tuple[str, str, dict[str, Any]]] = [
    ("UserNamespacesSupport", "spec.hostUsers", {"hostUsers": False}),
    ("PodLevelResources", "spec.resources", {"resources": {"limits": {"cpu": "1"}}}),
    ("ImageVolume", "spec.volumes[m].image", {"volumes": [{"name": "m", "image": {"reference": "a"}}]}),
    (
        "SupplementalGroupsPolicy",
        "spec.securityContext.supplementalGroupsPolicy",
        {"securityContext": {"supplementalGroupsPolicy": "Strict"}},
    ),
    (
        "SELinuxChangePolicy",
        "spec.securityContext.seLinuxChangePolicy",
        {"securityContext": {"seLinuxChangePolicy": "Recursive"}},
    ),
    (
        "AppArmorFields",
        "spec.securityContext.appArmorProfile",
        {"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}},
    ),
    (
        "MatchLabelKeysInPodTopologySpread",
        "spec.topologySpreadConstraints[zone].matchLabelKeys",
        {"topologySpreadConstraints": [{"topologyKey": "zone", "matchLabelKeys": ["a"]}]},
    ),
    (
        "NodeInclusionPolicyInPodTopologySpread",
        "spec.topologySpreadConstraints[zone].nodeTaintsPolicy",
        {"topologySpreadConstraints": [{"topologyKey": "zone", "nodeTaintsPolicy": "Honor"}]},
    ),
    (
        "SidecarContainers",
        "spec.initContainers[app].restartPolicy",
        {"initContainers": [container(restartPolicy="Always")]},
    ),
    (
        "ContainerRestartRules",
        "spec.initContainers[app].restartPolicy",
        {"initContainers": [container(restartPolicy="OnFailure")]},
    ),
]
OF_CONTAINERS: list[tuple[str, str, dict[str, Any]]] = [
    ("ContainerRestartRules", "restartPolicy", {"restartPolicy": "Never"}),
    ("ContainerRestartRules", "restartPolicyRules", {"restartPolicyRules": [{"action": "Restart"}]}),
    ("ContainerStopSignals", "lifecycle.stopSignal", {"lifecycle": {"stopSignal": "SIGINT"}}),
    ("PodLifecycleSleepAction", "lifecycle.preStop.sleep", {"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}),
    ("PodLifecycleSleepAction", "lifecycle.postStart.sleep", {"lifecycle": {"postStart": {"sleep": {"seconds": 5}}}}),
    (
        "AppArmorFields",
        "securityContext.appArmorProfile",
        {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}},
    ),
    ("ProcMountType", "securityContext.procMount", {"securityContext": {"procMount": "Unmasked"}}),
    (
        "RecursiveReadOnlyMounts",
        "volumeMounts[/data].recursiveReadOnly",
        {"volumeMounts": [{"name": "d", "mountPath": "/data", "recursiveReadOnly": "Enabled"}]},
    ),
    (
        "EnvFiles",
        "env[A].valueFrom.fileKeyRef",
        {"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "A"}}}]},
    ),
]
DEFAULTS: list[dict[str, Any]] = [
    {"hostUsers": True},
    {"securityContext": {"supplementalGroupsPolicy": "Merge", "seLinuxChangePolicy": "MountOption"}},
    {"topologySpreadConstraints": [{"nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Ignore"}]},
    {"containers": [container(securityContext={"procMount": "Default"})]},
    {"containers": [container(resizePolicy=[{"resourceName": "cpu", "restartPolicy": "NotRequired"}])]},
    {"containers": [container(volumeMounts=[{"mountPath": "/a", "recursiveReadOnly": "Disabled"}])]},
    {"containers": [container(volumeMounts=[{"mountPath": "/a", "recursiveReadOnly": "IfPossible"}])]},
]


def _in_containers() -> list[tuple[str, str, dict[str, Any]]]:
    kinds = ("initContainers", "containers", "ephemeralContainers")
    return [
        (gate, f"spec.{kind}[app].{field}", {kind: [container(**more)]})
        for kind in kinds
        for gate, field, more in OF_CONTAINERS
    ]


@pytest.mark.parametrize(("gate", "field", "spec"), [*GUARDED, *_in_containers()])
def test_feature_gated_fields_are_found(gate: str, field: str, spec: dict[str, Any]) -> None:
    assert feature_gated_fields(spec) == (FeatureGatedField(gate, field),)


@pytest.mark.parametrize("spec", DEFAULTS)
def test_fields_equal_to_their_default_do_not_count(spec: dict[str, Any]) -> None:
    assert feature_gated_fields(spec) == ()


def test_typical_pod_has_no_feature_gated_fields() -> None:
    assert feature_gated_fields(forward(pod())["spec"]) == ()


def test_hostname_override_is_feature_gated() -> None:
    (found,) = feature_gated_fields(forward(pod(setHostnameAsFQDN=True, subdomain="s"))["spec"])
    assert found.gate == "HostnameOverride"
    assert "setHostnameAsFQDN" in found.field


def test_fields_are_compared_by_name_not_by_index() -> None:
    sent = pod(initContainers=[container("a", restartPolicy="Always")], hostUsers=False)["spec"]
    injected = {**sent, "initContainers": [container("mesh", restartPolicy="Always"), *sent["initContainers"]]}
    assert set(feature_gated_fields(sent)) <= set(feature_gated_fields(injected))
    assert FeatureGatedField("UserNamespacesSupport", "spec.hostUsers") not in feature_gated_fields(
        without_fields(injected, ["hostUsers"])
    )


def test_message_names_lost_fields_and_the_remedy() -> None:
    lost = feature_gated_fields({"volumes": [{"name": "m", "image": {}}], "hostUsers": False})
    assert lost_fields_message(lost[::-1]) == (
        "the compute cluster would drop spec.volumes[m].image: its feature gate ImageVolume is off, or its "
        "Kubernetes version is too old; bring the files in the container's image, or in a claim "
        "(the same applies to spec.hostUsers)"
    )
    assert lost_fields_message(lost[:1]).endswith("; leave it out")


def test_ephemeral_containers_without_lost_fields_are_forwarded() -> None:
    good, bad = container("good"), container("bad", securityContext={"procMount": "Unmasked"})
    patch: dict[str, Any] = {"metadata": {"uid": "u"}, "spec": {"ephemeralContainers": [bad, good]}}
    lost = feature_gated_fields(patch["spec"])
    assert drop_lost_containers(patch, lost) == {"metadata": {"uid": "u"}, "spec": {"ephemeralContainers": [good]}}
    assert drop_lost_containers({"spec": {"ephemeralContainers": [bad]}}, lost) is None
    assert drop_lost_containers({"spec": {"resources": {}}}, lost) is None
