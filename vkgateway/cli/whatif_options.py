"""Parsers of the options of `whatif`: resources, durations, guarantees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vkgateway.api.errors import InputError
from vkgateway.api.quantity import Resources

if TYPE_CHECKING:
    from vkgateway.api.types import TenantPool
    from vkgateway.scheduler.core.whatif.questions import GuaranteeQuestion


def parse_requests(texts: Iterable[str]) -> Resources:
    """Parse `nvidia.com/gpu=8,cpu=4`, given once or several times. Raises InputError that quotes the invalid part."""
    found: Resources = {}
    for text in texts:
        for item in text.split(","):
            name, equals, amount = item.partition("=")
            if not name or not equals or not amount:
                raise InputError(
                    f"--request {text!r}: {item!r} is not RESOURCE=QUANTITY",
                    hint="Example: nvidia.com/gpu=8,cpu=4,memory=16Gi",
                )
            if name in found:
                raise InputError(f"--request {text!r}: {name} is given twice", hint="Give each resource once.")
            found[name] = amount
    return found


def parse_seconds(option: str, text: str | None) -> float | None:
    """Parse a duration in the format of the gang annotations; None if it is not given. Raises InputError."""
    from vkgateway.scheduler.gangs import MarkError
    from vkgateway.scheduler.gangs.mark_values import parse_duration

    try:
        return parse_duration(option, text) if text is not None else None
    except MarkError as error:
        raise InputError(f"{option} {text!r} is not a duration", hint="Examples: 90m, 1h30m, 2d.") from error


def parse_guarantee(tenant: str, text: str) -> GuaranteeQuestion:
    """Parse a guarantee as in `tenant create --pool`; a missing limit or weight stays unchanged.

    Raises InputError.
    """
    from vkgateway.api.names import virtual_node_name
    from vkgateway.cli.tenant_spec import parse_pool
    from vkgateway.scheduler.core.whatif.questions import GuaranteeQuestion

    pool = parse_pool(text)
    if not pool.guarantee:
        raise InputError(
            f"--pool {text!r} has no guarantee",
            hint="Example: a100:guarantee=nvidia.com/gpu=16. To remove a guarantee, use guarantee=nvidia.com/gpu=0.",
        )
    given = {part.partition("=")[0] for part in text.partition(":")[2].split(",")}
    return GuaranteeQuestion(
        tenant=tenant,
        pool=virtual_node_name(pool.name, pool.compute_cluster),
        guarantee=pool.guarantee,
        limit=pool.limit if "limit" in given else None,
        weight=pool.weight if "weight" in given else None,
        cells=pool.cells,
    )


def guarantee_questions(tenant: str, pools: Iterable[TenantPool]) -> list[GuaranteeQuestion]:
    """Return a question for each pool of a tenant with a guarantee."""
    from vkgateway.api.names import virtual_node_name
    from vkgateway.scheduler.core.whatif.questions import GuaranteeQuestion

    return [
        GuaranteeQuestion(
            tenant=tenant,
            pool=virtual_node_name(pool.name, pool.compute_cluster),
            guarantee=pool.guarantee,
            limit=pool.limit,
            weight=pool.weight,
            cells=pool.cells,
        )
        for pool in pools
        if pool.guarantee
    ]
