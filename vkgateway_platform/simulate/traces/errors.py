"""Error for a trace, or a file about a cluster, that cannot be read."""

from __future__ import annotations

from vkgateway.api.errors import InputError


class TraceError(InputError):
    """Line or field that does not follow its format. The message contains it and its value."""


def parse_number(text: object, *, field: str, where: str) -> float:
    """Return a number that is not negative. Raises TraceError for anything else."""
    try:
        found = float(str(text))
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise TraceError(f"{where}: {field} {text!r} is not a number of zero or more")
    return found
