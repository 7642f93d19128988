"""Gangs that were admitted and that their tenant's scheduler has not bound as a whole yet (pure)."""

from __future__ import annotations

from collections.abc import Iterable


class BindingGangs:
    """One tenant's. No pod of a gang is forwarded before all that start with it are bound.

    Pods that the arbiter does not govern may take the sum that a virtual node offers before the scheduler binds the
    last pod of a gang. The others would then run as a part of it.
    """

    def __init__(self) -> None:
        self._unbound: dict[str, set[str]] = {}
        """Uids by gang."""

    def await_binding(self, group: str, uids: Iterable[str]) -> None:
        """Wait until these pods of a gang are bound."""
        unbound = set(uids)
        if unbound:
            self._unbound.setdefault(group, set()).update(unbound)

    def is_binding(self, group: str, uid: str = "") -> bool:
        """Return whether a pod of the gang, or this one, is not bound yet."""
        unbound = self._unbound.get(group)
        return unbound is not None and (not uid or uid in unbound)

    def mark_bound(self, group: str, uid: str) -> bool:
        """Wait no longer for a pod, which is bound. Return whether it was the last of its gang."""
        unbound = self._unbound.get(group)
        if unbound is None or uid not in unbound:
            return False
        unbound.discard(uid)
        if unbound:
            return False
        del self._unbound[group]
        return True

    def cancel_binding(self, group: str) -> None:
        """Wait for no pod of the gang: it does not start."""
        self._unbound.pop(group, None)
