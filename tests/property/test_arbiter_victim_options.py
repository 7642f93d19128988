"""Best option of each node compared with a search through all runs of its rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vkgateway.scheduler.core.preemption import node_costs
from vkgateway.scheduler.core.preemption.node_costs import (
    FreedRows,
    Shortage,
    TieBreakers,
    best_victim_options,
    cost_shares,
    count_fitting_pods,
    useful_amounts,
)

NODES = 3
ROWS = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, 4), st.integers(0, 30), st.integers(0, 9)),
    min_size=1,
    max_size=12,
)
FREE = st.lists(st.tuples(st.integers(-2, 6), st.integers(-5, 20)), min_size=NODES, max_size=NODES)


@settings(deadline=None, max_examples=120)
@given(ROWS, FREE, st.tuples(st.integers(0, 4), st.integers(0, 9)), st.integers(1, 6), st.booleans())
def test_best_option_is_cheapest_run(
    given_rows: list[tuple[int, int, int, int]],
    free: list[tuple[int, int]],
    ask: tuple[int, int],
    short: int,
    many: bool,
) -> None:
    node, one, other, price = np.array(given_rows, dtype=np.int64).T
    rows = FreedRows(np.arange(len(node)), node, np.array([one, other]))
    want = Shortage(np.array(free, dtype=np.int64).T.copy(), np.array(ask, dtype=np.int64), short)
    useful = useful_amounts(rows, want)
    kept = rows.filter_rows(useful > 0)
    useful = useful[useful > 0]
    if not len(kept.candidate):
        return
    share = cost_shares(price, kept, useful, np.zeros(len(node)), short)
    ties = TieBreakers(np.arange(len(node)), np.zeros(len(node), dtype=np.int64), np.zeros(len(node), dtype=np.int64))
    before, node_costs._MAX_EXACT_ROWS = node_costs._MAX_EXACT_ROWS, 0 if many else node_costs._MAX_EXACT_ROWS
    try:
        found = best_victim_options(kept, share, useful, tie_breakers=ties, shortage=want)
    finally:
        node_costs._MAX_EXACT_ROWS = before
    expected = {}
    for each in range(NODES):
        mine = [index for index in range(len(kept.candidate)) if kept.node[index] == each]
        mine.sort(key=lambda index: (share[index] / useful[index], index))
        runs = [mine[: index + 1] for index in range(len(mine))] + [[index] for index in mine]
        ratios = [_cost_per_pod(want, kept, share, run, each) for run in runs]
        if ratios and min(ratios) < float("inf"):
            expected[each] = min(ratios)
    assert dict(zip(found.node.tolist(), found.cost_per_pod.tolist(), strict=True)) == expected
    assert found.cost_per_pod.tolist() == sorted(found.cost_per_pod.tolist())
    for index, each in enumerate(found.node.tolist()):
        places = list(range(found.first[index], found.last[index] + 1))
        lots = found.rows.candidate[places].tolist()
        run = [kept.candidate.tolist().index(lot) for lot in lots]
        assert _cost_per_pod(want, kept, share, run, each) == expected[each]
        assert found.gained_pods[index] == _gained_pods(want, kept, run, each)
        assert found.next_cost_per_pod[index] >= found.cost_per_pod[index]


def _gained_pods(want: Shortage, rows: FreedRows, run: list[int], node: int) -> int:
    free = want.free[:, [node]]
    after = free + rows.freed[:, run].sum(axis=1, keepdims=True)
    return min(
        int(count_fitting_pods(after, want.request)[0] - count_fitting_pods(free, want.request)[0]), want.missing_pods
    )


def _cost_per_pod(
    want: Shortage, rows: FreedRows, share: np.typing.NDArray[np.int64], run: list[int], node: int
) -> float:
    gain = _gained_pods(want, rows, run, node)
    return float(share[run].sum() / gain) if gain > 0 else float("inf")
