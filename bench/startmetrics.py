"""The gateway's metrics of the parts of guaranteed starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import aiohttp

_LINE: Final = re.compile(r'^vkgateway_guaranteed_start_seconds_(sum|count)\{term="(\w+)"\} (\S+)$', re.MULTILINE)

Terms = Mapping[str, tuple[float, float]]
"""Seconds and observations so far, by part of a start."""


async def fetch_metrics(socket: Path) -> str:
    """Return the metrics of the gateway that serves them at this Unix socket."""
    connector = aiohttp.UnixConnector(str(socket))
    async with (
        aiohttp.ClientSession("http://gateway", connector=connector) as session,
        session.get("/metrics") as answer,
    ):
        return await answer.text()


async def read_terms(socket: Path) -> Terms:
    """Return the current parts from the gateway that serves its metrics at this Unix socket."""
    return parse_terms(await fetch_metrics(socket))


def parse_terms(text: str) -> Terms:
    """Return the parts in a page of metrics."""
    found: dict[tuple[str, str], float] = {(match[2], match[1]): float(match[3]) for match in _LINE.finditer(text)}
    return {term: (found[term, "sum"], found.get((term, "count"), 0.0)) for term, kind in found if kind == "sum"}


def mean_terms(before: Terms, after: Terms) -> dict[str, float]:
    """Return the mean seconds of each part between two readings."""
    means: dict[str, float] = {}
    for term, (seconds, count) in after.items():
        old_seconds, old_count = before.get(term, (0.0, 0.0))
        if count > old_count:
            means[term] = (seconds - old_seconds) / (count - old_count)
    return means
