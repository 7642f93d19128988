"""The gateway's own account of how guaranteed gangs start, from its metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import aiohttp

_LINE: Final = re.compile(r'^vkgateway_guaranteed_start_seconds_(sum|count)\{term="(\w+)"\} (\S+)$', re.MULTILINE)

Terms = Mapping[str, tuple[float, float]]
"""Seconds and observations so far, by part of the way."""


async def page(socket: Path) -> str:
    """Return the metrics of the gateway that serves them at this Unix socket."""
    connector = aiohttp.UnixConnector(str(socket))
    async with (
        aiohttp.ClientSession("http://gateway", connector=connector) as session,
        session.get("/metrics") as answer,
    ):
        return await answer.text()


async def read(socket: Path) -> Terms:
    """Return what the gateway that serves its metrics at this Unix socket tells now."""
    return parse(await page(socket))


def parse(text: str) -> Terms:
    """The parts in a page of metrics."""
    found: dict[tuple[str, str], float] = {(match[2], match[1]): float(match[3]) for match in _LINE.finditer(text)}
    return {term: (found[term, "sum"], found.get((term, "count"), 0.0)) for term, kind in found if kind == "sum"}


def means(before: Terms, after: Terms) -> dict[str, float]:
    """Seconds of each part in the mean of what was observed in between."""
    told: dict[str, float] = {}
    for term, (seconds, count) in after.items():
        old_seconds, old_count = before.get(term, (0.0, 0.0))
        if count > old_count:
            told[term] = (seconds - old_seconds) / (count - old_count)
    return told
