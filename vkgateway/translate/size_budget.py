"""How large what is made of one object may become: a short text of a tenant's may mean a long one many times over."""

from typing import Final

from vkgateway.model.errors import InputError

MAX_REQUEST_BYTES: Final = 3 * 1024 * 1024
"""Bytes that API servers take in one request: nothing larger could be made below."""
_LOOKUP_COST: Final = 8
"""What one look at a namespace or a range of addresses costs beside: looks take time, as bytes take room."""


class OversizeError(InputError):
    """What is to be made is larger than any API server takes."""


class SizeBudget:
    """What may still be put into one object, in bytes."""

    def __init__(self) -> None:
        self._remaining = MAX_REQUEST_BYTES

    def charge_size(self, size: int = 0, *, looks: int = 0) -> None:
        """Note bytes that are about to be put in, and looks that are about to be taken. Raises OversizeError."""
        self._remaining -= size + looks * _LOOKUP_COST
        if self._remaining < 0:
            raise OversizeError("it would be larger in the compute cluster than any API server takes")
