"""Parts of starts from the gateway's metrics."""

from __future__ import annotations

from prometheus_client import generate_latest

from bench.startmetrics import mean_terms, parse_terms
from vkgateway.scheduler.service.metrics import observe_start


def test_mean_terms_between_two_readings() -> None:
    observe_start("grace", 9.0)
    before = parse_terms(generate_latest().decode())
    observe_start("grace", 1.0)
    observe_start("grace", 2.0)
    means = mean_terms(before, parse_terms(generate_latest().decode()))
    assert means == {"grace": 1.5}


def test_empty_page_has_no_terms() -> None:
    assert mean_terms(parse_terms(""), parse_terms("")) == {}
