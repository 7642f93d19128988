"""Rules that level restricted adds. Each returns a finding in the words of the PodSecurity admission plugin."""

from typing import Final

from vkgateway.kinds.pods.policy.security.baseline import (
    Finding,
    SecurityPodView,
    added_capabilities,
    any_path,
    check_seccomp,
    container_capabilities,
    container_context,
    forbidden_capabilities,
    name_containers,
    name_setters,
    pluralize_noun,
    quote_names,
    seccomp_type,
    uses_verb,
)


def check_privilege_escalation(pod: SecurityPodView) -> Finding:
    """Check that each container disallows privilege escalation."""
    bad = [c["name"] for c in pod.containers if container_context(c).get("allowPrivilegeEscalation") is not False]
    if pod.is_windows or not bad:
        return None
    detail = f"{name_containers(bad)} must set securityContext.allowPrivilegeEscalation=false"
    return any_path("allowPrivilegeEscalation"), "true", "allowPrivilegeEscalation != false", detail


def check_capabilities_restricted(pod: SecurityPodView) -> Finding:
    """Check that all capabilities are dropped and none but NET_BIND_SERVICE is added."""
    if pod.is_windows:
        return None
    missing = [c["name"] for c in pod.containers if "ALL" not in container_capabilities(c, "drop")]
    bad = added_capabilities(pod, ("NET_BIND_SERVICE",))
    details = []
    if missing:
        details.append(f'{name_containers(missing)} must set securityContext.capabilities.drop=["ALL"]')
    if bad:
        details.append(forbidden_capabilities(bad))
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


def check_volume_types(pod: SecurityPodView) -> Finding:
    """Check that volumes give no access to the host or its networks. A volume without a type is an emptyDir."""
    bad = {
        volume["name"]: next((kind for kind in volume if kind != "name"), "unknown")
        for volume in pod.spec.get("volumes") or ()
        if len(volume) > 1 and RESTRICTED_VOLUMES.isdisjoint(volume)
    }
    if not bad:
        return None
    names, kinds = list(bad), sorted(set(bad.values()))
    what = pluralize_noun(len(kinds), "restricted volume type")
    detail = (
        f"{pluralize_noun(len(names), 'volume')} {quote_names(names)} {uses_verb(names)} {what} {quote_names(kinds)}"
    )
    return "spec.volumes[*]", ", ".join(kinds), "restricted volume types", detail


def check_run_as_non_root(pod: SecurityPodView) -> Finding:
    """Check that the user is declared not to be root."""
    if pod.has_user_namespace:
        return None
    field, reason = "spec.securityContext.runAsNonRoot", "runAsNonRoot != true"
    by_pod = pod.security_context.get("runAsNonRoot")
    chosen = {c["name"]: container_context(c).get("runAsNonRoot") for c in pod.containers}
    explicit = [name for name, value in chosen.items() if value is False]
    if by_pod is False or explicit:
        detail = f"{name_setters(by_pod is False, explicit)} must not set securityContext.runAsNonRoot=false"
        return field, "false", reason, detail
    implicit = [name for name, value in chosen.items() if value is None and not by_pod]
    if not implicit:
        return None
    return field, "", reason, f"pod or {name_containers(implicit)} must set securityContext.runAsNonRoot=true"


def check_run_as_user(pod: SecurityPodView) -> Finding:
    """Check that the user is not 0."""
    if pod.has_user_namespace:
        return None
    by_pod = pod.security_context.get("runAsUser") == 0
    bad = [c["name"] for c in pod.containers if container_context(c).get("runAsUser") == 0]
    if not by_pod and not bad:
        return None
    detail = f"{name_setters(by_pod, bad)} must not set runAsUser=0"
    return "spec.securityContext.runAsUser", "0", "runAsUser=0", detail


def check_seccomp_restricted(pod: SecurityPodView) -> Finding:
    """Check that a seccomp profile is set for each container."""
    if pod.is_windows:
        return None
    explicit = check_seccomp(pod)
    if explicit is not None:
        return explicit
    unset = [c["name"] for c in pod.containers if seccomp_type(container_context(c)) is None]
    if not unset or seccomp_type(pod.security_context) is not None:
        return None
    who = f"pod or {name_containers(unset)}"
    detail = f'{who} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return "spec.securityContext.seccompProfile.type", "", "seccompProfile", detail
