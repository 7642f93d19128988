"""Kubernetes' Pod Security Standards: same verdicts and messages as the PodSecurity admission plugin."""

from vkgateway.kinds.pods.policy.security.levels import Violation, find_violations

__all__ = ["Violation", "find_violations"]
