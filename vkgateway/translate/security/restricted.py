"""The rules that level restricted adds; each gives what is wrong in the PodSecurity admission plugin's words."""

from typing import Final

from vkgateway.translate.security.baseline import seccomp_baseline, seccomp_type
from vkgateway.translate.security.view import (
    Finding,
    PodView,
    added,
    any_path,
    capabilities,
    context,
    must_not_add,
    named,
    plural,
    quoted,
    setters,
    uses,
)


def privilege_escalation(pod: PodView) -> Finding:
    """Privilege escalation: ruled out in each container."""
    bad = [c["name"] for c in pod.containers if context(c).get("allowPrivilegeEscalation") is not False]
    if pod.windows or not bad:
        return None
    detail = f"{named(bad)} must set securityContext.allowPrivilegeEscalation=false"
    return any_path("allowPrivilegeEscalation"), "true", "allowPrivilegeEscalation != false", detail


def capabilities_restricted(pod: PodView) -> Finding:
    """Capabilities: all dropped, and none added but NET_BIND_SERVICE."""
    if pod.windows:
        return None
    missing = [c["name"] for c in pod.containers if "ALL" not in capabilities(c, "drop")]
    bad = added(pod, ("NET_BIND_SERVICE",))
    details = []
    if missing:
        details.append(f'{named(missing)} must set securityContext.capabilities.drop=["ALL"]')
    if bad:
        details.append(must_not_add(bad))
    if not details:
        return None
    value = ", ".join(sorted(set().union(*bad.values()))) if bad else ""
    return any_path("capabilities"), value, "unrestricted capabilities", "; ".join(details)


RESTRICTED_VOLUMES: Final = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)


def restricted_volumes(pod: PodView) -> Finding:
    """Volume types: those that bring nothing of the host or its networks; none named means emptyDir."""
    bad = {
        volume["name"]: next((kind for kind in volume if kind != "name"), "unknown")
        for volume in pod.spec.get("volumes") or ()
        if len(volume) > 1 and RESTRICTED_VOLUMES.isdisjoint(volume)
    }
    if not bad:
        return None
    names, kinds = list(bad), sorted(set(bad.values()))
    what = plural(len(kinds), "restricted volume type")
    detail = f"{plural(len(names), 'volume')} {quoted(names)} {uses(names)} {what} {quoted(kinds)}"
    return "spec.volumes[*]", ", ".join(kinds), "restricted volume types", detail


def run_as_non_root(pod: PodView) -> Finding:
    """Users: declared not to be root."""
    if pod.user_namespace:
        return None
    field, reason = "spec.securityContext.runAsNonRoot", "runAsNonRoot != true"
    by_pod = pod.security.get("runAsNonRoot")
    chosen = {c["name"]: context(c).get("runAsNonRoot") for c in pod.containers}
    explicit = [name for name, value in chosen.items() if value is False]
    if by_pod is False or explicit:
        detail = f"{setters(by_pod is False, explicit)} must not set securityContext.runAsNonRoot=false"
        return field, "false", reason, detail
    implicit = [name for name, value in chosen.items() if value is None and not by_pod]
    if not implicit:
        return None
    return field, "", reason, f"pod or {named(implicit)} must set securityContext.runAsNonRoot=true"


def run_as_user(pod: PodView) -> Finding:
    """Users: not 0."""
    if pod.user_namespace:
        return None
    by_pod = pod.security.get("runAsUser") == 0
    bad = [c["name"] for c in pod.containers if context(c).get("runAsUser") == 0]
    if not by_pod and not bad:
        return None
    detail = f"{setters(by_pod, bad)} must not set runAsUser=0"
    return "spec.securityContext.runAsUser", "0", "runAsUser=0", detail


def seccomp_restricted(pod: PodView) -> Finding:
    """Seccomp profiles: set for each container."""
    if pod.windows:
        return None
    explicit = seccomp_baseline(pod)
    if explicit is not None:
        return explicit
    unset = [c["name"] for c in pod.containers if seccomp_type(context(c)) is None]
    if not unset or seccomp_type(pod.security) is not None:
        return None
    who = f"pod or {named(unset)}"
    detail = f'{who} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return "spec.securityContext.seccompProfile.type", "", "seccompProfile", detail
