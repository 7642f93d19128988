"""What tenants take of something that there is only so much of for all of them."""

from __future__ import annotations

from collections import Counter


class Shares:
    """Counts by tenant: `each` is what one may have, and none has more than is left of `total` for the others.

    So who comes first leaves room: one tenant gets half of all at most, two that take what they can a third each, and
    the next one always finds something, without anything being taken away from anybody (dynamic thresholds, as switches
    share their buffers).
    """

    def __init__(self, each: int, total: int) -> None:
        self.each = each
        self.total = total
        self._taken: Counter[str] = Counter()

    def take(self, tenant: str, amount: int = 1) -> bool:
        """Count it, if there is room. Who has nothing may take more than `each` at once: one answer is one answer."""
        known = self._taken[tenant]
        if (known and known + amount > self.each) or known + amount > self.left:
            return False
        self._taken[tenant] += amount
        return True

    def give(self, tenant: str, amount: int = 1) -> None:
        """Count it no longer."""
        self._taken[tenant] -= amount
        if not self._taken[tenant]:
            del self._taken[tenant]

    def of(self, tenant: str) -> int:
        """What a tenant has now."""
        return self._taken.get(tenant, 0)

    @property
    def taken(self) -> int:
        """What all have now."""
        return self._taken.total()

    @property
    def left(self) -> int:
        """What nobody has."""
        return self.total - self.taken
