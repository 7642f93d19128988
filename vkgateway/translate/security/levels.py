"""Which rules make up a level of the Pod Security Standards, and which of them a pod breaks.

The rules are those of https://kubernetes.io/docs/concepts/security/pod-security-standards/ as of Kubernetes 1.36
("latest"); the words are those of the PodSecurity admission plugin, which the same pod would meet below.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.model.api import PodSecurity
from vkgateway.translate.references import containers
from vkgateway.translate.security import baseline, restricted
from vkgateway.translate.security.view import Check, PodView

_SHARED: Final[tuple[tuple[str, Check], ...]] = (
    ("hostPorts", baseline.host_ports),
    ("hostProbesAndHostLifecycle", baseline.host_probes),
    ("privileged", baseline.privileged),
)
_BASELINE: Final[tuple[tuple[str, Check], ...]] = (
    ("appArmorProfile", baseline.app_armor),
    ("capabilities_baseline", baseline.capabilities_baseline),
    ("hostNamespaces", baseline.host_namespaces),
    ("hostPathVolumes", baseline.host_path_volumes),
    *_SHARED,
    ("procMount", baseline.proc_mount_baseline),
    ("seLinuxOptions", baseline.selinux),
    ("seccompProfile_baseline", baseline.seccomp_baseline),
    ("sysctls", baseline.sysctls),
    ("windowsHostProcess", baseline.windows_host_process),
)
_RESTRICTED: Final[tuple[tuple[str, Check], ...]] = (
    ("appArmorProfile", baseline.app_armor),
    ("hostNamespaces", baseline.host_namespaces),
    *_SHARED,
    ("seLinuxOptions", baseline.selinux),
    ("sysctls", baseline.sysctls),
    ("windowsHostProcess", baseline.windows_host_process),
    ("allowPrivilegeEscalation", restricted.privilege_escalation),
    ("capabilities_restricted", restricted.capabilities_restricted),
    ("procMount_restricted", baseline.proc_mount_restricted),
    ("restrictedVolumes", restricted.restricted_volumes),
    ("runAsNonRoot", restricted.run_as_non_root),
    ("runAsUser", restricted.run_as_user),
    ("seccompProfile_restricted", restricted.seccomp_restricted),
)
_LEVELS: Final[Mapping[PodSecurity, tuple[tuple[str, Check], ...]]] = {
    "privileged": (),
    "baseline": _BASELINE,
    "restricted": _RESTRICTED,
}
"""A restricted rule that is stricter than a baseline one stands in its place; baseline rules come first."""


def rule_names(level: PodSecurity) -> tuple[str, ...]:
    """Return the names of a level's rules, in the plugin's order."""
    return tuple(name for name, _ in _LEVELS[level])


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One rule of a level that a pod breaks: the rule's name, the field, what stands there, and the plugin's words."""

    rule: str
    field: str
    value: str
    message: str


def violations(pod: Mapping[str, Any], *, level: PodSecurity) -> list[Violation]:
    """The rules of a level that a pod breaks, in the plugin's order; none for level `privileged`."""
    checks = _LEVELS[level]
    if not checks:
        return []
    spec = pod.get("spec") or {}
    seen = PodView(spec, (pod.get("metadata") or {}).get("annotations") or {}, tuple(containers(spec)))
    broken = []
    for rule, check in checks:
        finding = check(seen)
        if finding is not None:
            field, value, reason, detail = finding
            words = f'violates PodSecurity "{level}:latest": {reason} ({detail})'
            broken.append(Violation(rule=rule, field=field, value=value, message=words))
    return broken
