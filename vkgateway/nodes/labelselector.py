"""Label and field selectors of list requests. Pure.

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

_SET: Final = re.compile(r"(\S+)\s+(in|notin)\s+\(([^()]*)\)")
_COMPARISON: Final = re.compile(r"([^\s=!,()]+)\s*(==|=|!=)\s*([^\s=!,()]*)")
_EXISTS: Final = re.compile(r"(!?)\s*([^\s=!,()]+)")
_TERMS: Final = re.compile(r",(?![^()]*\))")

Selector = Callable[[Mapping[str, str]], bool]


def parse(text: str) -> Selector:
    """Return a function that matches labels or fields against a selector. The empty selector matches all.

    Raises:
        ValueError: The text is not a selector; the message quotes the invalid part.
    """
    terms = [_parse_term(term.strip()) for term in _TERMS.split(text)] if text.strip() else []
    return lambda labels: all(term(labels) for term in terms)


def _parse_term(text: str) -> Selector:
    if found := _SET.fullmatch(text):
        key, values = found[1], frozenset(value.strip() for value in found[3].split(","))
        included = found[2] == "in"
        return lambda labels: (labels.get(key) in values) is included
    if found := _COMPARISON.fullmatch(text):
        key, value, equal = found[1], found[3], found[2] != "!="
        return lambda labels: (labels.get(key) == value) is equal
    if found := _EXISTS.fullmatch(text):
        key, exists = found[2], not found[1]
        return lambda labels: (key in labels) is exists
    raise ValueError(f"{text[:100]!r} is not part of a selector like app=web,tier in (a, b),!old")
