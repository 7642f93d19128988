"""What requests keep in memory: bodies as they come, output of commands, answers that are not read yet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from vkgateway.kubelet.shares import Shares

Take = Callable[[int], None]
"""Counts so many bytes more of a request. Raises HeldError."""
HELD_MAX = 64 * 1024 * 1024
"""Bytes of one tenant; one answer alone may be as large as it is."""
HELD_IN_ALL = 512 * 1024 * 1024


def uncounted(_size: int) -> None:
    """Count nothing."""


class HeldError(Exception):
    """A tenant has too much in memory; the message is for the tenant."""


class Account:
    """Bytes of one request."""

    def __init__(self, shares: Shares, tenant: str) -> None:
        self._shares = shares
        self._tenant = tenant
        self.bytes = 0

    def take(self, size: int) -> None:
        """Count so many more. Raises HeldError."""
        if not self._shares.take(self._tenant, size):
            known = self._shares.of(self._tenant)
            raise HeldError(f"{known} bytes of requests and answers are under way; read the answers and try again")
        self.bytes += size


class Held:
    """Counts bytes by tenant."""

    def __init__(self, most: int = HELD_MAX, total: int = HELD_IN_ALL) -> None:
        self._shares = Shares(most, total)

    @contextlib.contextmanager
    def account(self, tenant: str) -> Iterator[Account]:
        """Give an account that counts while the block lasts."""
        account = Account(self._shares, tenant)
        try:
            yield account
        finally:
            self._shares.give(tenant, account.bytes)

    def total(self) -> int:
        """How many bytes are held now."""
        return self._shares.taken
