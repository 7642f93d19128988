"""Event reasons and messages for missing objects that a pod refers to. Pure.

The reasons for ConfigMaps and Secrets are those of virtual-kubelet (internal/podutils/env.go), whose end-to-end tests
expect them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from vkgateway.sync.views.ownership import CopyKind, Reference

CLAIM_NOT_READY: Final = "PersistentVolumeClaimNotReady"
"""A claim of the pod does not exist, is not bound, or is bound to a volume that the pod cannot mount."""
_KINDS: Final[dict[CopyKind, str]] = {"configmaps": "ConfigMap", "secrets": "Secret"}


@dataclass(frozen=True, slots=True)
class Absence:
    """Reason and message of one event about all missing objects of one kind."""

    reason: str
    message: str


def mandatory_absences(missing: Sequence[Reference], claims: Sequence[str] = ()) -> list[Absence]:
    """Return the events about objects without which the pod cannot start; `claims` has a message per unready claim."""
    waits_for_claims = [Absence(CLAIM_NOT_READY, ", ".join(claims))] if claims else []
    return [*_not_found("Mandatory", missing), *waits_for_claims]


def optional_absences(missing: Sequence[Reference]) -> list[Absence]:
    """Return the events about missing objects without which the pod starts."""
    return _not_found("Optional", missing)


def _not_found(prefix: str, missing: Sequence[Reference]) -> list[Absence]:
    return [
        Absence(f"{prefix}{word}NotFound", _not_found_message(word, (name for of, _, name in missing if of == kind)))
        for kind, word in _KINDS.items()
        if any(of == kind for of, _, _ in missing)
    ]


def _not_found_message(word: str, names: Iterable[str]) -> str:
    """Name the objects in the words of a kubelet."""
    return ", ".join(f'{word.lower()} "{name}" not found' for name in names)
