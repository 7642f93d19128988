"""Failures of tasks side by side."""

from __future__ import annotations

from vkgateway.model.errors import VkgatewayError


def first(group: BaseExceptionGroup[VkgatewayError]) -> VkgatewayError:
    """Return the first failure of a group: it tells the story."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, VkgatewayError)
    return error
