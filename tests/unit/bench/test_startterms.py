"""The gateway's own account of starts, read from its metrics."""

from __future__ import annotations

from prometheus_client import generate_latest

from bench.startterms import means, parse
from vkgateway.sync.arbiter_metrics import observe_start


def test_means_of_what_was_observed_in_between() -> None:
    observe_start("grace", 9.0)
    before = parse(generate_latest().decode())
    observe_start("grace", 1.0)
    observe_start("grace", 2.0)
    told = means(before, parse(generate_latest().decode()))
    assert told == {"grace": 1.5}


def test_an_empty_page_tells_nothing() -> None:
    assert means(parse(""), parse("")) == {}
