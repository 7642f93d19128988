"""Size limit of objects made from tenant input, because a short text can expand to a long one many times."""

from typing import Final

from vkgateway.api.errors import InputError

MAX_REQUEST_BYTES: Final = 3 * 1024 * 1024
"""Bytes that API servers accept in one request."""
_LOOKUP_COST: Final = 8
"""Bytes charged for one comparison with a namespace or an address range, because comparisons take time."""


class OversizeError(InputError):
    """The translated object is larger than any API server accepts."""


class SizeBudget:
    """Remaining bytes for one object."""

    def __init__(self) -> None:
        self._remaining = MAX_REQUEST_BYTES

    def charge_size(self, size: int = 0, *, lookups: int = 0) -> None:
        """Charge bytes that are about to be added, and comparisons that are about to be made.

        Raises:
            OversizeError: the budget is exceeded.
        """
        self._remaining -= size + lookups * _LOOKUP_COST
        if self._remaining < 0:
            raise OversizeError("the object is larger than any API server accepts; use fewer or shorter values")
