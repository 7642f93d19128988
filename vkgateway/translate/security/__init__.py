"""Kubernetes' Pod Security Standards: the same verdicts as its admission plugin, in the same words."""

from vkgateway.translate.security.levels import Violation, violations

__all__ = ["Violation", "violations"]
