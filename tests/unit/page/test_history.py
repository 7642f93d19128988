"""Samples of usage over the last day."""

from __future__ import annotations

from tests.fakes.page_gateway import small_gateway
from vkgateway.page.history import History
from vkgateway.scheduler.core.reasons.report import build_summary


def test_tenant_reads_no_samples_of_a_deleted_one_with_its_name() -> None:
    cycle = small_gateway().last
    assert cycle is not None
    report, history = build_summary(*cycle), History()
    history.add_sample(report, 60.0, uids={"alpha": "first", "beta": "beta-1"})
    history.add_sample(report, 120.0, uids={"alpha": "next", "beta": "beta-1"})

    [series] = history.tenant_series("alpha", "next")["series"].values()
    [whole] = history.tenant_series("beta", "beta-1")["series"].values()

    assert [value is None for value in series["used"]] == [True, False]
    assert None not in whole["used"]
    assert history.tenant_series("alpha", "third")["series"] == {}
