"""Messages of evictions at run limits: the limit, what declares it, and the way out."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.api.names import GANG_RUN_LIMIT_ANNOTATION
from vkgateway.api.run_limits import render_duration
from vkgateway.scheduler.core.snapshot import Band
from vkgateway.scheduler.service.member import GangMember


def run_limit_message(limit: float, members: Iterable[GangMember]) -> str:
    """Return why the pods of a gang are evicted at its run limit in seconds, for their owner."""
    governed = [member for member in members if member.governed]
    marks = [member.marks for member in governed if member.marks is not None]
    declared = [each for each in marks if each.run_limit is not None]
    # As `merge_marks` does: a gang has a declared limit if all its pods have one.
    if declared and len(declared) == len(governed):
        said = max(declared, key=lambda each: (each.run_limit == limit, each.run_limit or 0.0)).run_limit_source
        return f"reaches its run limit of {render_duration(limit)} ({said}); {_way_out('raise that limit')}"
    is_low = any(member.band is Band.LOW for member in governed)
    band = "low pods" if is_low else "pods of the guaranteed band"
    way_out = _way_out(f"declare a longer limit with annotation {GANG_RUN_LIMIT_ANNOTATION}")
    return f"reaches its run limit of {render_duration(limit)} (the pool's default for {band}); {way_out}"


def _way_out(longer: str) -> str:
    return f"to run longer, {longer}, or save checkpoints from which the next run continues"
