"""What `whatif` reads from its options: resources, lengths of time, guarantees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vkgateway.model.errors import InputError
from vkgateway.model.quantity import Resources

if TYPE_CHECKING:
    from vkgateway.arbiter.whatif.questions import GuaranteeQuestion
    from vkgateway.model.api import TenantPool


def parse_requests(texts: Iterable[str]) -> Resources:
    """Read `nvidia.com/gpu=8,cpu=4`, given once or several times. Raises InputError that quotes what is wrong."""
    found: Resources = {}
    for text in texts:
        for item in text.split(","):
            name, equals, amount = item.partition("=")
            if not name or not equals or not amount:
                raise InputError(
                    f"--request {text!r}: cannot read {item!r}",
                    hint="Write RESOURCE=QUANTITY, like nvidia.com/gpu=8,cpu=4,memory=16Gi",
                )
            if name in found:
                raise InputError(f"--request {text!r}: {name} is given twice", hint="Give each resource once.")
            found[name] = amount
    return found


def parse_seconds(option: str, text: str | None) -> float | None:
    """Read a length of time as a gang's annotations have it; None where it is not given. Raises InputError."""
    from vkgateway.translate.gangs import MarkError
    from vkgateway.translate.gangs.mark_values import parse_duration

    try:
        return parse_duration(option, text) if text is not None else None
    except MarkError as error:
        raise InputError(f"{option} {text!r} is no length of time", hint="Write one like 90m, 1h30m, 2d.") from error


def parse_guarantee(tenant: str, text: str) -> GuaranteeQuestion:
    """Read a guarantee as `tenant create --pool` does, but that limit and weight may be left as they are.

    Raises InputError.
    """
    from vkgateway.arbiter.whatif.questions import GuaranteeQuestion
    from vkgateway.cli.tenant_spec import parse_pool
    from vkgateway.model.names import virtual_node_name

    pool = parse_pool(text)
    if not pool.guarantee:
        raise InputError(
            f"--pool {text!r} names no guarantee",
            hint="Write it like a100:guarantee=nvidia.com/gpu=16; guarantee=nvidia.com/gpu=0 takes it away.",
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
    """Return a question for each pool of a tenant's that has a guarantee."""
    from vkgateway.arbiter.whatif.questions import GuaranteeQuestion
    from vkgateway.model.names import virtual_node_name

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
