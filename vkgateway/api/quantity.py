"""Exact Kubernetes resource quantities, and arithmetic on resource lists."""

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache

Quantity = str | int
"""A quantity in JSON: `2`, `"500m"`, `"1Ti"`, `"1e3"`."""

Resources = dict[str, Quantity]
"""Resource names to quantities, like `{"cpu": "2", "nvidia.com/gpu": 8}`."""

_QUANTITY_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d+)?", re.ASCII)
_DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_EXACT_CONTEXT = Context(prec=60)
_ZERO = Decimal(0)
_MAX_QUANTITY = Decimal(2**63 - 1)
_MAX_EXPONENT = 1000
"""Larger exponents are clamped: they exceed `_MAX_QUANTITY` anyway, and a number of a million digits takes a minute."""


@lru_cache(maxsize=4096)
def parse_quantity(text: Quantity) -> Decimal:
    """Return the exact value of a quantity, clamped to 2^63-1.

    The syntax and the bound are those of Kubernetes' `resource.Quantity`
    (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/).

    Raises:
        ValueError: The text is not a quantity; the message quotes the text.
    """
    value = Decimal(text) if isinstance(text, int) else _parse_text(text)
    return max(-_MAX_QUANTITY, min(value, _MAX_QUANTITY))


def _parse_text(text: str) -> Decimal:
    match = _QUANTITY_FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a quantity like 2, 500m or 16Gi")
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _BINARY_SUFFIXES:
        return _EXACT_CONTEXT.multiply(number, Decimal(1024 ** _BINARY_SUFFIXES[suffix]))
    exponent = _DECIMAL_SUFFIXES[suffix] if suffix in _DECIMAL_SUFFIXES else int(suffix[1:] or 0)
    return _EXACT_CONTEXT.scaleb(number, max(-_MAX_EXPONENT, min(exponent, _MAX_EXPONENT)))


def render_quantity(value: Decimal, *, binary: bool = False) -> str:
    """Return the text of a quantity, rounded up to thousandths like Kubernetes does.

    With `binary`, a multiple of 1024 gets the largest suffix of Ki to Ei that keeps the number whole.
    """
    milli = int(_EXACT_CONTEXT.scaleb(value, 3).to_integral_value(rounding=ROUND_CEILING))
    if milli % 1000:
        return f"{milli}m"
    whole = milli // 1000
    if not binary or whole == 0 or whole % 1024:
        return str(whole)
    power = 0
    while whole % 1024 == 0 and power < len(_BINARY_SUFFIXES):
        whole //= 1024
        power += 1
    return f"{whole}{list(_BINARY_SUFFIXES)[power - 1]}"


def _is_binary(quantities: Iterable[Quantity]) -> bool:
    return any(isinstance(quantity, str) and quantity.endswith("i") for quantity in quantities)


def sum_resources(lists: Iterable[Mapping[str, Quantity]]) -> dict[str, str]:
    """Return the sum of resource lists, with the resources of every list."""
    sums: dict[str, Decimal] = {}
    binary: set[str] = set()
    for resources in lists:
        for name, quantity in resources.items():
            sums[name] = sums.get(name, _ZERO) + parse_quantity(quantity)
            if _is_binary((quantity,)):
                binary.add(name)
    return {name: render_quantity(value, binary=name in binary) for name, value in sums.items()}


def cap_resources(resources: Mapping[str, Quantity], caps: Mapping[str, Quantity]) -> dict[str, str]:
    """Return a resource list with each resource limited to its amount in `caps`, if `caps` has the resource."""
    return {
        name: render_quantity(
            min(parse_quantity(quantity), parse_quantity(caps[name])), binary=_is_binary((quantity, caps[name]))
        )
        if name in caps
        else str(quantity)
        for name, quantity in resources.items()
    }


def subtract_resources(resources: Mapping[str, Quantity], taken: Mapping[str, Quantity]) -> dict[str, str]:
    """Return `resources` minus `taken`, never below zero, with the keys of `resources`."""
    return {
        name: render_quantity(
            max(_ZERO, parse_quantity(quantity) - parse_quantity(taken[name])),
            binary=_is_binary((quantity, taken[name])),
        )
        if name in taken
        else str(quantity)
        for name, quantity in resources.items()
    }


def exceeded_resources(wanted: Mapping[str, Quantity], available: Mapping[str, Quantity]) -> list[str]:
    """Return the resources, in order, whose wanted amount exceeds the available amount (0 if not listed)."""
    return [
        name for name, quantity in wanted.items() if parse_quantity(quantity) > parse_quantity(available.get(name, 0))
    ]
