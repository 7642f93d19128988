"""What a tenant's limit leaves, kept for its own gang that is ahead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vkgateway.arbiter.asks import Ask
from vkgateway.arbiter.facts import Pod
from vkgateway.arbiter.ledger import Ledger
from vkgateway.arbiter.standing import Standing


def keep_limit(ledger: Ledger, pools: Iterable[Standing], ask: Ask) -> None:
    """Keep a limit for a gang that has waited for long, if only what its tenant brought after it uses that up."""
    if not ledger.has_aged(ask.gang):
        return
    for standing in pools:
        if standing.beyond_limit(ask.tenant, ask.core) and _only_later_work_is_in_its_way(standing, ask):
            standing.limit_kept.setdefault(ask.tenant, ask.gang.id)
            return


def crowds_out(ledger: Ledger, standing: Standing, ask: Ask, pods: Sequence[Pod]) -> bool:
    """Whether these pods would use up what their tenant's limit leaves for its own gang that is ahead of them.

    Who will have gone in time does not; but times may prove wrong again and again, so a gang that has waited for long
    depends on nobody's.
    """
    if not standing.limit_kept and standing.reservation is None:
        return False
    ahead = ledger.asks.get(standing.limit_kept.get(ask.tenant, ""))
    if ahead is not None and ahead is not ask:
        missing = standing.beyond_limit(ask.tenant, [*ahead.core, *pods])
        return any(pod.shape.amount(name) for pod in pods for name in missing)
    kept = standing.reservation
    ahead = ledger.asks.get(kept.gang) if kept is not None else None
    if kept is None or ahead is None or ahead is ask or ahead.tenant != ask.tenant:
        return False
    if not ledger.has_aged(ahead.gang) and kept.lets(standing.ends, ask.gang, ledger.now):
        return False
    return bool(standing.beyond_limit(ask.tenant, [*ahead.core, *pods]))


def _only_later_work_is_in_its_way(standing: Standing, ask: Ask) -> bool:
    gone = {name: held.item(0) for name, held in standing.held_after_one(ask.gang).items()}
    return not standing.missing_of_limit(ask.tenant, ask.core, [gone])
