"""Rules of each level of the Pod Security Standards, and the rules that a pod breaks.

The rules are those of https://kubernetes.io/docs/concepts/security/pod-security-standards/ as of Kubernetes 1.36
("latest"). The messages are those of the PodSecurity admission plugin, which checks the pod in the compute cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.api.types import PodSecurity
from vkgateway.kinds.pods.policy.security import baseline, restricted
from vkgateway.kinds.pods.policy.security.baseline import Check, SecurityPodView
from vkgateway.kinds.pods.translation.pod_references import all_containers

_SHARED: Final[tuple[tuple[str, Check], ...]] = (
    ("hostPorts", baseline.check_host_ports),
    ("hostProbesAndHostLifecycle", baseline.check_host_probes),
    ("privileged", baseline.check_privileged),
)
_BASELINE: Final[tuple[tuple[str, Check], ...]] = (
    ("appArmorProfile", baseline.check_app_armor),
    ("capabilities_baseline", baseline.check_capabilities),
    ("hostNamespaces", baseline.check_host_namespaces),
    ("hostPathVolumes", baseline.check_host_paths),
    *_SHARED,
    ("procMount", baseline.check_proc_mount),
    ("seLinuxOptions", baseline.check_selinux),
    ("seccompProfile_baseline", baseline.check_seccomp),
    ("sysctls", baseline.check_sysctls),
    ("windowsHostProcess", baseline.check_windows_host_process),
)
_RESTRICTED: Final[tuple[tuple[str, Check], ...]] = (
    ("appArmorProfile", baseline.check_app_armor),
    ("hostNamespaces", baseline.check_host_namespaces),
    *_SHARED,
    ("seLinuxOptions", baseline.check_selinux),
    ("sysctls", baseline.check_sysctls),
    ("windowsHostProcess", baseline.check_windows_host_process),
    ("allowPrivilegeEscalation", restricted.check_privilege_escalation),
    ("capabilities_restricted", restricted.check_capabilities_restricted),
    ("procMount_restricted", baseline.check_proc_mount_restricted),
    ("restrictedVolumes", restricted.check_volume_types),
    ("runAsNonRoot", restricted.check_run_as_non_root),
    ("runAsUser", restricted.check_run_as_user),
    ("seccompProfile_restricted", restricted.check_seccomp_restricted),
)
_LEVELS: Final[Mapping[PodSecurity, tuple[tuple[str, Check], ...]]] = {
    "privileged": (),
    "baseline": _BASELINE,
    "restricted": _RESTRICTED,
}
"""Baseline rules come first. A stricter restricted rule replaces its baseline rule."""


def rule_names(level: PodSecurity) -> tuple[str, ...]:
    """Return the names of a level's rules, in the plugin's order."""
    return tuple(name for name, _ in _LEVELS[level])


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Rule of a level that a pod breaks: the rule's name, the field, its value, and the plugin's message."""

    rule: str
    field: str
    value: str
    message: str


def find_violations(pod: Mapping[str, Any], *, level: PodSecurity) -> list[Violation]:
    """Return the rules of a level that a pod breaks, in the plugin's order. Level `privileged` has none."""
    checks = _LEVELS[level]
    if not checks:
        return []
    spec = pod.get("spec") or {}
    seen = SecurityPodView(spec, (pod.get("metadata") or {}).get("annotations") or {}, tuple(all_containers(spec)))
    broken = []
    for rule, check in checks:
        finding = check(seen)
        if finding is not None:
            field, value, reason, detail = finding
            words = f'violates PodSecurity "{level}:latest": {reason} ({detail})'
            broken.append(Violation(rule=rule, field=field, value=value, message=words))
    return broken
