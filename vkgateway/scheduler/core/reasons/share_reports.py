"""Reports of the tenants' fair shares, now and in the past (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.reasons.report_types import ShareReport
from vkgateway.scheduler.core.snapshot import Snapshot, node_name

_DIGITS = 6


def share_reports(
    snapshot: Snapshot, now: float, past_shares: Iterable[PastShare] | None = None
) -> tuple[ShareReport, ...]:
    """Return the shares of all tenants in all pools at a time (seconds since the epoch); none without a half-life.

    `past_shares` are those after the decisions on the snapshot; None: those of the snapshot.
    """
    half_life = snapshot.policy.half_life
    if not half_life:
        return ()
    known = {(each.tenant, each.pool): each for each in (snapshot.past_shares if past_shares is None else past_shares)}
    found = []
    for quota in sorted(snapshot.quotas, key=lambda quota: (quota.pool, quota.tenant)):
        share = known.get((quota.tenant, quota.pool))
        found.append(
            ShareReport(
                tenant=quota.tenant,
                pool=node_name(quota.pool),
                weight=quota.weight,
                now=round(share.share, _DIGITS) if share is not None else 0.0,
                past=round(share.average_at(now, half_life), _DIGITS) if share is not None else 0.0,
                at=now,
            )
        )
    return tuple(found)
