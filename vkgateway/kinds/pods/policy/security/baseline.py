"""Rules of level baseline, and the view of a pod that rules check.

Each rule returns a finding in the words of the PodSecurity admission plugin.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.kinds.pods.translation.downward_api import quote_go

Container = Mapping[str, Any]

APPARMOR_ANNOTATION: Final = "container.apparmor.security.beta.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class SecurityPodView:
    """Accessors for the parts of a pod that security rules check."""

    spec: Mapping[str, Any]
    annotations: Mapping[str, str]
    containers: Sequence[Container]

    @property
    def security_context(self) -> Mapping[str, Any]:
        """Security context of the pod."""
        return self.spec.get("securityContext") or {}

    @property
    def is_windows(self) -> bool:
        """Whether the pod declares itself a Windows pod."""
        return (self.spec.get("os") or {}).get("name") == "windows"

    @property
    def has_user_namespace(self) -> bool:
        """Whether the pod has a user namespace, so that its root user is not root on the host."""
        return self.spec.get("hostUsers") is False


Finding = tuple[str, str, str, str] | None
"""Field, value, and the plugin's reason and detail."""
Check = Callable[[SecurityPodView], Finding]


def quote_names(items: Iterable[str]) -> str:
    """Return names in double quotes, separated by commas."""
    return ", ".join(f'"{item}"' for item in items)


def pluralize_noun(count: int, singular: str) -> str:
    """Return the noun for a count."""
    return singular if count == 1 else f"{singular}s"


def name_containers(bad: Sequence[str]) -> str:
    """Return "container" or "containers" with their names."""
    return f"{pluralize_noun(len(bad), 'container')} {quote_names(bad)}"


def uses_verb(bad: Sequence[str]) -> str:
    """Return the verb for a number of containers."""
    return "uses" if len(bad) == 1 else "use"


def container_context(container: Container) -> Mapping[str, Any]:
    """Return a container's security context."""
    return container.get("securityContext") or {}


def name_setters(pod_is_bad: bool, bad: Sequence[str]) -> str:
    """Return the words for pod, containers or both, whichever set a value."""
    return " and ".join([*(["pod"] if pod_is_bad else []), *([name_containers(bad)] if bad else [])])


def any_path(field: str) -> str:
    """Return the path of a field in the security context of any container."""
    return f"spec.containers[*].securityContext.{field}"


def container_capabilities(container: Container, kind: str) -> Sequence[str]:
    """Return the capabilities that a container adds or drops."""
    return (container_context(container).get("capabilities") or {}).get(kind) or ()


def added_capabilities(pod: SecurityPodView, allowed: Iterable[str]) -> dict[str, set[str]]:
    """Return the containers that add capabilities beyond those allowed, with these capabilities."""
    wanted = {c["name"]: set(container_capabilities(c, "add")) - set(allowed) for c in pod.containers}
    return {name: extra for name, extra in wanted.items() if extra}


def forbidden_capabilities(bad: Mapping[str, set[str]]) -> str:
    """Return the words for capabilities that must not be added."""
    extra = sorted(set().union(*bad.values()))
    return f"{name_containers(list(bad))} must not include {quote_names(extra)} in securityContext.capabilities.add"


def check_app_armor(pod: SecurityPodView) -> Finding:
    """Check that AppArmor profiles are the runtime's default or one of the node's."""

    def bad_type(context: Mapping[str, Any]) -> str | None:
        profile = context.get("appArmorProfile")
        kind = None if profile is None else profile.get("type", "")
        return kind if kind not in (None, "RuntimeDefault", "Localhost") else None

    pod_type = bad_type(pod.security_context)
    types = {c["name"]: kind for c in pod.containers if (kind := bad_type(container_context(c))) is not None}
    annotations = sorted(
        f"{key}={quote_go(value)}"
        for key, value in pod.annotations.items()
        if key.startswith(APPARMOR_ANNOTATION) and not _allowed_app_armor(value)
    )
    if pod_type is None and not types and not annotations:
        return None
    values = sorted({*types.values(), *([] if pod_type is None else [pod_type])}) + annotations
    who = [text for text in [name_setters(pod_type is not None, list(types))] if text]
    who += [pluralize_noun(len(annotations), "annotation")] if annotations else []
    reason = pluralize_noun(len(values), "forbidden AppArmor profile")
    detail = f"{' and '.join(who)} must not set AppArmor profile type to {quote_names(values)}"
    return any_path("appArmorProfile.type"), ", ".join(values), reason, detail


def _allowed_app_armor(value: str) -> bool:
    return not value or value == "runtime/default" or value.startswith("localhost/")


DEFAULT_CAPABILITIES: Final = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)


def check_capabilities(pod: SecurityPodView) -> Finding:
    """Check that no capability is added beyond the runtime's defaults."""
    bad = added_capabilities(pod, DEFAULT_CAPABILITIES)
    if not bad:
        return None
    value = ", ".join(sorted(set().union(*bad.values())))
    return any_path("capabilities.add"), value, "non-default capabilities", forbidden_capabilities(bad)


def check_host_namespaces(pod: SecurityPodView) -> Finding:
    """Check that the pod does not share the host's network, process or IPC namespace."""
    used = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.spec.get(name)]
    if not used:
        return None
    return f"spec.{used[0]}", "true", "host namespaces", ", ".join(f"{name}=true" for name in used)


def check_host_paths(pod: SecurityPodView) -> Finding:
    """Check that no volume is a host path."""
    bad = [volume["name"] for volume in pod.spec.get("volumes") or () if volume.get("hostPath") is not None]
    if not bad:
        return None
    return (
        "spec.volumes[*].hostPath",
        bad[0],
        "hostPath volumes",
        f"{pluralize_noun(len(bad), 'volume')} {quote_names(bad)}",
    )


def check_host_ports(pod: SecurityPodView) -> Finding:
    """Check that no container uses a host port."""
    used = {
        c["name"]: {str(port["hostPort"]) for port in c.get("ports") or () if port.get("hostPort")}
        for c in pod.containers
    }
    bad = {name: found for name, found in used.items() if found}
    if not bad:
        return None
    ports = sorted(set().union(*bad.values()))
    detail = (
        f"{name_containers(list(bad))} {uses_verb(list(bad))} "
        f"{pluralize_noun(len(ports), 'hostPort')} {', '.join(ports)}"
    )
    return "spec.containers[*].ports[*].hostPort", ", ".join(ports), "hostPort", detail


def _probe_hosts(container: Container) -> set[str]:
    lifecycle = container.get("lifecycle") or {}
    handlers = [container.get(kind) for kind in ("livenessProbe", "readinessProbe", "startupProbe")]
    handlers += [lifecycle.get("postStart"), lifecycle.get("preStop")]
    found = set()
    for handler in filter(None, handlers):
        for kind in ("httpGet", "tcpSocket"):
            found.add((handler.get(kind) or {}).get("host") or "")
    return found - {""}


def check_host_probes(pod: SecurityPodView) -> Finding:
    """Check that probes and lifecycle handlers name no other host."""
    bad = {c["name"]: found for c in pod.containers if (found := _probe_hosts(c))}
    if not bad:
        return None
    hosts, names = sorted(set().union(*bad.values())), sorted(bad)
    what = pluralize_noun(len(hosts), "probe or lifecycle host")
    detail = f"{name_containers(names)} {uses_verb(names)} {what} {quote_names(hosts)}"
    return "spec.containers[*].livenessProbe.httpGet.host", ", ".join(hosts), "probe or lifecycle host", detail


def check_privileged(pod: SecurityPodView) -> Finding:
    """Check that no container is privileged."""
    bad = [c["name"] for c in pod.containers if container_context(c).get("privileged")]
    if not bad:
        return None
    detail = f"{name_containers(bad)} must not set securityContext.privileged=true"
    return any_path("privileged"), "true", "privileged", detail


def check_proc_mount_restricted(pod: SecurityPodView) -> Finding:
    """Check that /proc mounts are the default."""
    found = {c["name"]: container_context(c).get("procMount") for c in pod.containers}
    bad = {name: kind for name, kind in found.items() if kind not in (None, "Default")}
    if not bad:
        return None
    kinds = sorted({str(kind) for kind in bad.values()})
    detail = f"{name_containers(list(bad))} must not set securityContext.procMount to {quote_names(kinds)}"
    return any_path("procMount"), ", ".join(kinds), "procMount", detail


def check_proc_mount(pod: SecurityPodView) -> Finding:
    """Check that /proc mounts are the default, unless the pod has a user namespace."""
    return None if pod.has_user_namespace else check_proc_mount_restricted(pod)


SELINUX_TYPES: Final = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")


def check_selinux(pod: SecurityPodView) -> Finding:
    """Check that SELinux options set no user, no role, and only container types."""

    def is_bad(context: Mapping[str, Any]) -> bool:
        options = context.get("seLinuxOptions") or {}
        kind = options.get("type") or ""
        return kind not in SELINUX_TYPES or bool(options.get("user") or options.get("role"))

    by_pod = is_bad(pod.security_context)
    bad = [c["name"] for c in pod.containers if is_bad(container_context(c))]
    if not by_pod and not bad:
        return None
    every = [
        context.get("seLinuxOptions") or {}
        for context in (pod.security_context, *map(container_context, pod.containers))
    ]
    types = sorted({kind for options in every if (kind := options.get("type") or "") not in SELINUX_TYPES})
    data = [f"{pluralize_noun(len(types), 'type')} {quote_names(types)}"] if types else []
    data += ["user may not be set"] if any(options.get("user") for options in every) else []
    data += ["role may not be set"] if any(options.get("role") for options in every) else []
    detail = f"{name_setters(by_pod, bad)} set forbidden securityContext.seLinuxOptions: {'; '.join(data)}"
    return any_path("seLinuxOptions"), ", ".join(types), "seLinuxOptions", detail


def seccomp_type(context: Mapping[str, Any]) -> str | None:
    """Return the type of a context's seccomp profile, or None if it has no profile."""
    profile = context.get("seccompProfile")
    return None if profile is None else profile.get("type", "")


SECCOMP_TYPES: Final = ("RuntimeDefault", "Localhost")


def check_seccomp(pod: SecurityPodView) -> Finding:
    """Check that no seccomp profile is Unconfined."""
    by_pod = seccomp_type(pod.security_context)
    types = {c["name"]: kind for c in pod.containers if (kind := seccomp_type(container_context(c))) is not None}
    bad = {name: kind for name, kind in types.items() if kind not in SECCOMP_TYPES}
    pod_is_bad = by_pod is not None and by_pod not in SECCOMP_TYPES
    if not bad and not pod_is_bad:
        return None
    values = sorted({*bad.values(), *([by_pod] if pod_is_bad and by_pod is not None else [])})
    who = name_setters(pod_is_bad, list(bad))
    detail = f"{who} must not set securityContext.seccompProfile.type to {quote_names(values)}"
    return any_path("seccompProfile.type"), ", ".join(values), "seccompProfile", detail


SAFE_SYSCTLS: Final = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)


def check_sysctls(pod: SecurityPodView) -> Finding:
    """Check that sysctls are safe and apply to the pod alone."""
    bad = [entry["name"] for entry in pod.security_context.get("sysctls") or () if entry["name"] not in SAFE_SYSCTLS]
    if not bad:
        return None
    return "spec.securityContext.sysctls", bad[0], "forbidden sysctls", ", ".join(bad)


def check_windows_host_process(pod: SecurityPodView) -> Finding:
    """Check that no container is a Windows host process."""

    def is_bad(context: Mapping[str, Any]) -> bool:
        return bool((context.get("windowsOptions") or {}).get("hostProcess"))

    by_pod = is_bad(pod.security_context)
    bad = [c["name"] for c in pod.containers if is_bad(container_context(c))]
    if not by_pod and not bad:
        return None
    detail = f"{name_setters(by_pod, bad)} must not set securityContext.windowsOptions.hostProcess=true"
    return any_path("windowsOptions.hostProcess"), "true", "hostProcess", detail
