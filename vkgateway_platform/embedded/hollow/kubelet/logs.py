"""The log of a container on a hollow node: one text, read as a kubelet reads logs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_TIME: Final = "2026-01-01T00:00:00.00000000{}Z"
_LINES: Final = (
    "This pod runs on a hollow node: nothing is executed.",
    "Pods that should really run belong on a real node.",
)


def log_lines(query: Mapping[str, str]) -> bytes:
    """Return the log by the options of PodLogOptions: `timestamps`, `tailLines`, `limitBytes`; none since a time."""
    if query.get("sinceSeconds") or query.get("sinceTime"):
        return b""
    stamped = query.get("timestamps") in ("true", "1")
    lines = [f"{_TIME.format(number)} {line}\n" if stamped else f"{line}\n" for number, line in enumerate(_LINES)]
    tail = query.get("tailLines", "")
    if tail.isdecimal():
        lines = lines[len(lines) - min(int(tail), len(lines)) :]
    text = "".join(lines).encode()
    limit = query.get("limitBytes", "")
    return text[: int(limit)] if limit.isdecimal() else text
