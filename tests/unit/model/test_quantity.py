"""Quantities: exact parsing, canonical rendering, and arithmetic on resource lists."""

import gc
import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkgateway.api import quantity
from vkgateway.api.requests import to_milli


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", "2"),
        (8, "8"),
        ("500m", "0.5"),
        ("1Ti", str(1024**4)),
        ("1e3", "1000"),
        ("1E", str(10**18)),
        ("1E3", "1000"),
        ("1.5Gi", str(3 * 2**29)),
        (".5", "0.5"),
        ("100n", "0.0000001"),
        ("-3", "-3"),
        (2**70, str(2**63 - 1)),
        ("1e19", str(2**63 - 1)),
        ("-16Ei", str(1 - 2**63)),
        ("8Ei", str(2**63 - 1)),
        ("0e999999", "0"),
    ],
)
def test_quantity_is_parsed_exactly(text: quantity.Quantity, value: str) -> None:
    assert quantity.parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "a", "1 Gi", "1gi", "Gi", "1e", "--1", "٣"])
def test_invalid_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.parse_quantity(text)


@pytest.mark.parametrize("text", ["1e999990", "-1e999990", "1e9999999999", "1e-999990", "1e-9999999999"])
def test_huge_exponent_is_clamped_quickly(text: str) -> None:
    gc.disable()  # a collection takes longer than this
    try:
        started = time.thread_time()
        amount = to_milli({"cpu": text})["cpu"]
        assert quantity.sum_resources([{"cpu": text}, {"cpu": text}])
        assert time.thread_time() - started < 0.1
    finally:
        gc.enable()
    assert abs(amount) < 2**73


@pytest.mark.parametrize(
    ("value", "binary", "text"),
    [
        ("2", False, "2"),
        ("0.5", False, "500m"),
        ("0.0001", False, "1m"),
        ("1024", True, "1Ki"),
        ("1025", True, "1025"),
        (str(3 * 2**30), True, "3Gi"),
        ("0", True, "0"),
    ],
)
def test_quantity_is_rendered(value: str, binary: bool, text: str) -> None:
    assert quantity.render_quantity(Decimal(value), binary=binary) == text


@given(st.integers(min_value=0, max_value=2**62), st.booleans())
def test_rendered_quantity_parses_back(milli: int, binary: bool) -> None:
    value = Decimal(milli) / 1000
    assert quantity.parse_quantity(quantity.render_quantity(value, binary=binary)) == value


def test_arithmetic_on_resource_lists() -> None:
    one: quantity.Resources = {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": 8}
    two: quantity.Resources = {"cpu": "500m", "memory": "1Gi"}
    assert quantity.sum_resources([one, two]) == {"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": "8"}
    assert quantity.cap_resources(one, {"cpu": 1, "nvidia.com/gpu": 16}) == {
        "cpu": "1",
        "memory": "1Gi",
        "nvidia.com/gpu": "8",
    }
    assert quantity.subtract_resources(one, {"cpu": 2, "memory": "512Mi"}) == {
        "cpu": "0",
        "memory": "512Mi",
        "nvidia.com/gpu": "8",
    }
    assert quantity.exceeded_resources(one, two) == ["cpu", "nvidia.com/gpu"]
