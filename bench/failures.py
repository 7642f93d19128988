"""Failures of concurrent tasks."""

from __future__ import annotations

from vkgateway.api.errors import VkgatewayError


def first_failure(group: BaseExceptionGroup[VkgatewayError]) -> VkgatewayError:
    """Return the first failure of a group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, VkgatewayError)
    return error


def describe_failure(error: VkgatewayError | BaseExceptionGroup[BaseException], *, tenants: int) -> str:
    """Return a note about a failure that ends a benchmark at this number of tenants.

    Raises groups with other errors than those of requests and waits.
    """
    if isinstance(error, BaseExceptionGroup):
        failures, others = error.split(VkgatewayError)
        if failures is None or others is not None:
            raise error
        error = first_failure(failures)
    return f"The benchmark ended at {tenants} tenants: {error}"
