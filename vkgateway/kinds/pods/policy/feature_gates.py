"""Pod fields that API servers drop silently while a feature gate is off, and alternatives to them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.kinds.pods.translation.pod_references import CONTAINER_LISTS

_REMOVE_FIELD: Final = "leave it out"
_ALTERNATIVES: Final[Mapping[str, str]] = {
    "ContainerRestartRules": "let the pod's restartPolicy do",
    "ContainerStopSignals": "set STOPSIGNAL in the image",
    "EnvFiles": "take a ConfigMap or Secret",
    "ImageVolume": "bring the files in the container's image, or in a claim",
    "MatchLabelKeysInPodTopologySpread": "put the label into labelSelector",
    "PodLevelResources": "give the containers resources of their own",
    "PodLifecycleSleepAction": "let a hook with exec sleep",
    "SidecarContainers": "make it one of spec.containers",
}


@dataclass(frozen=True, slots=True)
class FeatureGatedField:
    """Field that a pod sets, and the feature gate without which an API server drops it.

    Kubernetes' `pkg/api/pod/util.go` (`dropDisabledFields`) lists them. Servers older than the gate drop the field as
    well.
    """

    gate: str
    field: str


def feature_gated_fields(spec: Mapping[str, Any]) -> tuple[FeatureGatedField, ...]:
    """Return the feature-gated fields of a pod spec that have an effect, each once.

    Fields that mean the same as their absence are left out: defaults that a newer API server writes into every pod, and
    `resizePolicy`, without which a container is not resized at all. Fields that are never forwarded (`policy`,
    `to_compute`) and pod affinity's label keys (`peer_terms`) are left out, too.
    """
    found = [*_pod_fields(spec), *_spread_fields(spec)]
    for kind in CONTAINER_LISTS:
        for container in spec.get(kind) or ():
            found += _container_fields(container, kind)
    return tuple(dict.fromkeys(found))


def ephemeral_fields(container: Mapping[str, Any]) -> tuple[FeatureGatedField, ...]:
    """Return the feature-gated fields of one ephemeral container."""
    return feature_gated_fields({"ephemeralContainers": [container]})


def lost_fields_message(dropped: Sequence[FeatureGatedField]) -> str:
    """Return the message about fields that a compute cluster drops. `dropped` holds at least one."""
    first, *more = dropped
    why = f"its feature gate {first.gate} is off, or its Kubernetes version is too old"
    others = f" (the same applies to {', '.join(one.field for one in more)})" if more else ""
    return (
        f"the compute cluster would drop {first.field}: {why}; {_ALTERNATIVES.get(first.gate, _REMOVE_FIELD)}{others}"
    )


def _pod_fields(spec: Mapping[str, Any]) -> Iterator[FeatureGatedField]:
    if spec.get("hostUsers") is False:
        yield FeatureGatedField("UserNamespacesSupport", "spec.hostUsers")
    if spec.get("hostnameOverride"):
        yield FeatureGatedField("HostnameOverride", "spec.hostnameOverride (or setHostnameAsFQDN with a subdomain)")
    if spec.get("resources"):
        yield FeatureGatedField("PodLevelResources", "spec.resources")
    security = spec.get("securityContext")
    if security:
        yield from _security_fields(security, "spec.securityContext")
        if security.get("supplementalGroupsPolicy") == "Strict":
            yield FeatureGatedField("SupplementalGroupsPolicy", "spec.securityContext.supplementalGroupsPolicy")
        if security.get("seLinuxChangePolicy") == "Recursive":
            yield FeatureGatedField("SELinuxChangePolicy", "spec.securityContext.seLinuxChangePolicy")
    for volume in spec.get("volumes") or ():
        if volume.get("image") is not None:
            yield FeatureGatedField("ImageVolume", f"spec.volumes[{volume.get('name')}].image")


def _spread_fields(spec: Mapping[str, Any]) -> Iterator[FeatureGatedField]:
    for constraint in spec.get("topologySpreadConstraints") or ():
        path = f"spec.topologySpreadConstraints[{constraint.get('topologyKey')}]"
        if constraint.get("matchLabelKeys"):
            yield FeatureGatedField("MatchLabelKeysInPodTopologySpread", f"{path}.matchLabelKeys")
        for field, default in (("nodeAffinityPolicy", "Honor"), ("nodeTaintsPolicy", "Ignore")):
            if constraint.get(field, default) != default:
                yield FeatureGatedField("NodeInclusionPolicyInPodTopologySpread", f"{path}.{field}")


def _security_fields(security: Mapping[str, Any], path: str) -> Iterator[FeatureGatedField]:
    if security.get("appArmorProfile"):
        yield FeatureGatedField("AppArmorFields", f"{path}.appArmorProfile")
    if security.get("procMount", "Default") != "Default":
        yield FeatureGatedField("ProcMountType", f"{path}.procMount")


def _container_fields(container: Mapping[str, Any], kind: str) -> Iterator[FeatureGatedField]:
    path = f"spec.{kind}[{container.get('name')}]"
    policy = container.get("restartPolicy")
    if policy:
        sidecar = kind == "initContainers" and policy == "Always"
        yield FeatureGatedField("SidecarContainers" if sidecar else "ContainerRestartRules", f"{path}.restartPolicy")
    if container.get("restartPolicyRules"):
        yield FeatureGatedField("ContainerRestartRules", f"{path}.restartPolicyRules")
    lifecycle = container.get("lifecycle")
    if lifecycle:
        if lifecycle.get("stopSignal"):
            yield FeatureGatedField("ContainerStopSignals", f"{path}.lifecycle.stopSignal")
        for hook in ("postStart", "preStop"):
            if (lifecycle.get(hook) or {}).get("sleep"):
                yield FeatureGatedField("PodLifecycleSleepAction", f"{path}.lifecycle.{hook}.sleep")
    security = container.get("securityContext")
    if security:
        yield from _security_fields(security, f"{path}.securityContext")
    for mount in container.get("volumeMounts") or ():
        if mount.get("recursiveReadOnly") == "Enabled":
            yield FeatureGatedField(
                "RecursiveReadOnlyMounts", f"{path}.volumeMounts[{mount.get('mountPath')}].recursiveReadOnly"
            )
    for entry in container.get("env") or ():
        if "valueFrom" in entry and (entry["valueFrom"] or {}).get("fileKeyRef"):
            yield FeatureGatedField("EnvFiles", f"{path}.env[{entry.get('name')}].valueFrom.fileKeyRef")
