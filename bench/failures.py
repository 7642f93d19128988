"""Failures of concurrent tasks."""

from __future__ import annotations

from vkgateway.model.errors import VkgatewayError


def first_failure(group: BaseExceptionGroup[VkgatewayError]) -> VkgatewayError:
    """Return the first failure of a group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, VkgatewayError)
    return error
