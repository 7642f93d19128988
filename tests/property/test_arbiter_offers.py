"""The best offer of each node against a search through all runs of its rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vkgateway.arbiter import offers
from vkgateway.arbiter.offers import Rows, Ties, Want, best_offers, shares, slots, usefulness

NODES = 3
ROWS = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, 4), st.integers(0, 30), st.integers(0, 9)),
    min_size=1,
    max_size=12,
)
FREE = st.lists(st.tuples(st.integers(-2, 6), st.integers(-5, 20)), min_size=NODES, max_size=NODES)


@settings(deadline=None, max_examples=120)
@given(ROWS, FREE, st.tuples(st.integers(0, 4), st.integers(0, 9)), st.integers(1, 6), st.booleans())
def test_no_run_of_rows_is_cheaper(
    given_rows: list[tuple[int, int, int, int]],
    free: list[tuple[int, int]],
    ask: tuple[int, int],
    short: int,
    many: bool,
) -> None:
    node, one, other, price = np.array(given_rows, dtype=np.int64).T
    rows = Rows(np.arange(len(node)), node, np.array([one, other]))
    want = Want(np.array(free, dtype=np.int64).T.copy(), np.array(ask, dtype=np.int64), short)
    useful = usefulness(rows, want)
    kept = rows.only(useful > 0)
    useful = useful[useful > 0]
    if not len(kept.lot):
        return
    share = shares(price, kept, useful, np.zeros(len(node)), short)
    ties = Ties(np.arange(len(node)), np.zeros(len(node), dtype=np.int64), np.zeros(len(node), dtype=np.int64))
    before, offers._MANY = offers._MANY, 0 if many else offers._MANY
    try:
        found = best_offers(kept, share, useful, ties=ties, want=want)
    finally:
        offers._MANY = before
    expected = {}
    for each in range(NODES):
        mine = [index for index in range(len(kept.lot)) if kept.node[index] == each]
        mine.sort(key=lambda index: (share[index] / useful[index], index))
        runs = [mine[: index + 1] for index in range(len(mine))] + [[index] for index in mine]
        ratios = [_ratio(want, kept, share, run, each) for run in runs]
        if ratios and min(ratios) < float("inf"):
            expected[each] = min(ratios)
    assert dict(zip(found.node.tolist(), found.ratio.tolist(), strict=True)) == expected
    assert found.ratio.tolist() == sorted(found.ratio.tolist())
    for index, each in enumerate(found.node.tolist()):
        places = list(range(found.first[index], found.last[index] + 1))
        lots = found.rows.lot[places].tolist()
        run = [kept.lot.tolist().index(lot) for lot in lots]
        assert _ratio(want, kept, share, run, each) == expected[each]
        assert found.gain[index] == _gain(want, kept, run, each)
        assert found.following[index] >= found.ratio[index]


def _gain(want: Want, rows: Rows, run: list[int], node: int) -> int:
    free = want.free[:, [node]]
    after = free + rows.freed[:, run].sum(axis=1, keepdims=True)
    return min(int(slots(after, want.ask)[0] - slots(free, want.ask)[0]), want.short)


def _ratio(want: Want, rows: Rows, share: np.typing.NDArray[np.int64], run: list[int], node: int) -> float:
    gain = _gain(want, rows, run, node)
    return float(share[run].sum() / gain) if gain > 0 else float("inf")
