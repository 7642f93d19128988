"""What tenants take of something that there is only so much of for all of them."""

from __future__ import annotations

from collections import Counter


class SharedLimit:
    """Counts by tenant: `per_tenant` is what one may have, and none has more than is left of `total` for the others.

    So who comes first leaves room: one tenant gets half of all at most, two that take what they can a third each, and
    the next one always finds something, without anything being taken away from anybody (dynamic thresholds, as switches
    share their buffers).
    """

    def __init__(self, each: int, total: int) -> None:
        self.per_tenant = each
        self.total = total
        self._taken: Counter[str] = Counter()

    def try_acquire(self, tenant: str, amount: int = 1) -> bool:
        """Count it, if there is room. Who has nothing may take more than `per_tenant` at once: one answer is one
        answer.
        """
        known = self._taken[tenant]
        if (known and known + amount > self.per_tenant) or known + amount > self.total_left:
            return False
        self._taken[tenant] += amount
        return True

    def release_amount(self, tenant: str, amount: int = 1) -> None:
        """Count it no longer."""
        self._taken[tenant] -= amount
        if not self._taken[tenant]:
            del self._taken[tenant]

    def tenant_amount(self, tenant: str) -> int:
        """What a tenant has now."""
        return self._taken.get(tenant, 0)

    @property
    def total_taken(self) -> int:
        """What all have now."""
        return self._taken.total()

    @property
    def total_left(self) -> int:
        """What nobody has."""
        return self.total - self.total_taken
