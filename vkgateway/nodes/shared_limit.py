"""Fair limits of a resource that all tenants share."""

from __future__ import annotations

from collections import Counter


class SharedLimit:
    """Amounts by tenant, limited to `per_tenant` and to the part of `total` that is left.

    So one tenant gets at most half of the total, and two greedy tenants get a third each. The next tenant always finds
    a free amount, without revoking amounts of others (dynamic thresholds, like in switches with shared buffers).
    """

    def __init__(self, per_tenant: int, total: int) -> None:
        self.per_tenant = per_tenant
        self.total = total
        self._taken: Counter[str] = Counter()

    def try_acquire(self, tenant: str, amount: int = 1) -> bool:
        """Acquire an amount, or return False. A tenant without any amount may exceed `per_tenant` once.

        So a single large reply is possible.
        """
        current = self._taken[tenant]
        if (current and current + amount > self.per_tenant) or current + amount > self.total_left:
            return False
        self._taken[tenant] += amount
        return True

    def release_amount(self, tenant: str, amount: int = 1) -> None:
        """Release an amount."""
        self._taken[tenant] -= amount
        if not self._taken[tenant]:
            del self._taken[tenant]

    def tenant_amount(self, tenant: str) -> int:
        """Return the amount of a tenant."""
        return self._taken.get(tenant, 0)

    @property
    def total_taken(self) -> int:
        """The amount of all tenants."""
        return self._taken.total()

    @property
    def total_left(self) -> int:
        """The free amount."""
        return self.total - self.total_taken
