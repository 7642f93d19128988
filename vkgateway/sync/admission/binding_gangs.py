"""Admitted gangs of which the tenant's scheduler has not bound every pod yet (pure)."""

from __future__ import annotations

from collections.abc import Iterable


class BindingGangs:
    """Admitted gangs of one tenant that wait for bindings.

    No pod of a gang is forwarded before all pods that start with it are bound. Pods that the arbiter does not govern
    may use up the capacity of a virtual node before the scheduler binds the last pod of a gang. The other pods would
    then run as an incomplete gang.
    """

    def __init__(self) -> None:
        self._unbound: dict[str, set[str]] = {}
        """UIDs of unbound pods by gang."""

    def await_binding(self, group: str, uids: Iterable[str]) -> None:
        """Wait until these pods of a gang are bound."""
        unbound = set(uids)
        if unbound:
            self._unbound.setdefault(group, set()).update(unbound)

    def is_binding(self, group: str, uid: str = "") -> bool:
        """Return whether a pod of the gang is not bound yet."""
        unbound = self._unbound.get(group)
        return unbound is not None and (not uid or uid in unbound)

    def mark_bound(self, group: str, uid: str) -> bool:
        """Record that a pod is bound; return whether it was the last one of its gang."""
        unbound = self._unbound.get(group)
        if unbound is None or uid not in unbound:
            return False
        unbound.discard(uid)
        if unbound:
            return False
        del self._unbound[group]
        return True

    def cancel_binding(self, group: str) -> None:
        """Stop waiting for a gang: it does not start."""
        self._unbound.pop(group, None)
