"""Fields of pods that API servers drop in silence where a feature gate is off: which a pod sets, what to do instead."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.translate.references import CONTAINER_LISTS

_LEAVE_OUT: Final = "leave it out"
_INSTEAD: Final[Mapping[str, str]] = {
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
class Guarded:
    """A field that a pod sets, and the name of the feature gate without which an API server drops it.

    Kubernetes' `pkg/api/pod/util.go` (`dropDisabledFields`) has them all; servers from before the gate know no such
    field, and drop it as well.
    """

    gate: str
    field: str


def guarded_fields(spec: Mapping[str, Any]) -> tuple[Guarded, ...]:
    """The guarded fields of a pod spec that mean something, each once; of most pods none.

    Not counted is what means the same as nothing, so that it does no harm to lose: defaults that a newer API server may
    have written into every pod, and `resizePolicy`, since where it is lost no container is resized at all. Nor what
    never goes down as it is (`policy`, `down`), and pod affinity's label keys (`peers`).
    """
    found = [*_of_pod(spec), *_of_spread(spec)]
    for kind in CONTAINER_LISTS:
        for container in spec.get(kind) or ():
            found += _of_container(container, kind)
    return tuple(dict.fromkeys(found))


def ephemeral_fields(container: Mapping[str, Any]) -> tuple[Guarded, ...]:
    """Those of one ephemeral container, told as in the whole pod."""
    return guarded_fields({"ephemeralContainers": [container]})


def what_is_lost(lost: Sequence[Guarded]) -> str:
    """What the tenant is told of fields that a compute cluster drops; there is at least one."""
    first, *more = lost
    why = f"its feature {first.gate} is off, or its Kubernetes is too old"
    others = f" (so it is with {', '.join(one.field for one in more)})" if more else ""
    return f"the compute cluster would drop {first.field}: {why}; {_INSTEAD.get(first.gate, _LEAVE_OUT)}{others}"


def _of_pod(spec: Mapping[str, Any]) -> Iterator[Guarded]:
    if spec.get("hostUsers") is False:
        yield Guarded("UserNamespacesSupport", "spec.hostUsers")
    if spec.get("hostnameOverride"):
        yield Guarded("HostnameOverride", "spec.hostnameOverride (or setHostnameAsFQDN with a subdomain)")
    if spec.get("resources"):
        yield Guarded("PodLevelResources", "spec.resources")
    security = spec.get("securityContext")
    if security:
        yield from _of_security(security, "spec.securityContext")
        if security.get("supplementalGroupsPolicy") == "Strict":
            yield Guarded("SupplementalGroupsPolicy", "spec.securityContext.supplementalGroupsPolicy")
        if security.get("seLinuxChangePolicy") == "Recursive":
            yield Guarded("SELinuxChangePolicy", "spec.securityContext.seLinuxChangePolicy")
    for volume in spec.get("volumes") or ():
        if volume.get("image") is not None:
            yield Guarded("ImageVolume", f"spec.volumes[{volume.get('name')}].image")


def _of_spread(spec: Mapping[str, Any]) -> Iterator[Guarded]:
    for constraint in spec.get("topologySpreadConstraints") or ():
        path = f"spec.topologySpreadConstraints[{constraint.get('topologyKey')}]"
        if constraint.get("matchLabelKeys"):
            yield Guarded("MatchLabelKeysInPodTopologySpread", f"{path}.matchLabelKeys")
        for field, default in (("nodeAffinityPolicy", "Honor"), ("nodeTaintsPolicy", "Ignore")):
            if constraint.get(field, default) != default:
                yield Guarded("NodeInclusionPolicyInPodTopologySpread", f"{path}.{field}")


def _of_security(security: Mapping[str, Any], path: str) -> Iterator[Guarded]:
    if security.get("appArmorProfile"):
        yield Guarded("AppArmorFields", f"{path}.appArmorProfile")
    if security.get("procMount", "Default") != "Default":
        yield Guarded("ProcMountType", f"{path}.procMount")


def _of_container(container: Mapping[str, Any], kind: str) -> Iterator[Guarded]:
    path = f"spec.{kind}[{container.get('name')}]"
    policy = container.get("restartPolicy")
    if policy:
        sidecar = kind == "initContainers" and policy == "Always"
        yield Guarded("SidecarContainers" if sidecar else "ContainerRestartRules", f"{path}.restartPolicy")
    if container.get("restartPolicyRules"):
        yield Guarded("ContainerRestartRules", f"{path}.restartPolicyRules")
    lifecycle = container.get("lifecycle")
    if lifecycle:
        if lifecycle.get("stopSignal"):
            yield Guarded("ContainerStopSignals", f"{path}.lifecycle.stopSignal")
        for hook in ("postStart", "preStop"):
            if (lifecycle.get(hook) or {}).get("sleep"):
                yield Guarded("PodLifecycleSleepAction", f"{path}.lifecycle.{hook}.sleep")
    security = container.get("securityContext")
    if security:
        yield from _of_security(security, f"{path}.securityContext")
    for mount in container.get("volumeMounts") or ():
        if mount.get("recursiveReadOnly") == "Enabled":
            yield Guarded("RecursiveReadOnlyMounts", f"{path}.volumeMounts[{mount.get('mountPath')}].recursiveReadOnly")
    for entry in container.get("env") or ():
        if "valueFrom" in entry and (entry["valueFrom"] or {}).get("fileKeyRef"):
            yield Guarded("EnvFiles", f"{path}.env[{entry.get('name')}].valueFrom.fileKeyRef")
