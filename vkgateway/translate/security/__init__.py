"""Kubernetes' Pod Security Standards: the same verdicts as its admission plugin, in the same words."""

from vkgateway.translate.security.levels import Violation, find_violations

__all__ = ["Violation", "find_violations"]
