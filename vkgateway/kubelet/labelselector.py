"""Label and field selectors of list requests, as they are written in a query. Pure.

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
    """Return what tells whether labels, or fields, meet a selector; the empty one is met by all.

    Raises:
        ValueError: the text is no selector; the message holds the part that is none.
    """
    terms = [_parse_term(term.strip()) for term in _TERMS.split(text)] if text.strip() else []
    return lambda labels: all(term(labels) for term in terms)


def _parse_term(text: str) -> Selector:
    if found := _SET.fullmatch(text):
        key, values = found[1], frozenset(value.strip() for value in found[3].split(","))
        wanted = found[2] == "in"
        return lambda labels: (labels.get(key) in values) is wanted
    if found := _COMPARISON.fullmatch(text):
        key, value, equal = found[1], found[3], found[2] != "!="
        return lambda labels: (labels.get(key) == value) is equal
    if found := _EXISTS.fullmatch(text):
        key, there = found[2], not found[1]
        return lambda labels: (key in labels) is there
    raise ValueError(f"{text[:100]!r} is no part of a selector like app=web,tier in (a, b),!old")
