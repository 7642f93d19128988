"""Image pulls in the words of kubelets' events (pure).

The words are those of pkg/kubelet/images/image_manager.go in Kubernetes 1.24 to 1.36. Other words have no effect.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, get_args

PullResult = Literal["pulled", "present", "not_found", "denied", "failed"]
"""Result of a pull: pulled; present, so that nothing was pulled; or why it failed."""
RESULTS: Final[tuple[PullResult, ...]] = get_args(PullResult)

_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|us|µs|μs|ns|m|s)")
_DURATION: Final = r"[0-9][0-9.hmsunµμ]*"
_PULLED: Final = re.compile(
    rf'Successfully pulled image "(?P<image>.*)"'
    rf"(?: in (?P<pull>{_DURATION})(?: \((?P<total>{_DURATION}) including waiting\))?)?"
)
_PRESENT: Final = re.compile(r'Container image "(?P<image>.*)" already present on machine')
_FAILED: Final = re.compile(r'Failed to pull image "(?P<image>[^"]*)"')
_NOT_FOUND: Final = re.compile(r"not found|notfound|manifest unknown", re.IGNORECASE)
_DENIED: Final = re.compile(
    r"unauthorized|denied|authorization failed|forbidden|no basic auth|\b40[13]\b", re.IGNORECASE
)
_LONGEST: Final = 86_400.0
"""Seconds after which a duration counts as this: it is a mistake, and would hide all others."""


class Pull(NamedTuple):
    """What an event says about an image of a pod."""

    image: str
    result: PullResult
    seconds: float = 0.0
    """Duration of the pull."""
    total_seconds: float = 0.0
    """Duration including the time that the pull waited for other pulls of the node."""


def read_pull(reason: str, message: str) -> Pull | None:
    """Return what an event of a kubelet says about the end of an image pull; None if it says nothing about it."""
    if reason == "Pulled":
        return _read_success(message)
    if reason == "ErrImageNeverPull":
        return Pull("", "not_found")
    failed = _FAILED.match(message) if reason == "Failed" else None
    return Pull(failed["image"], _failure(message)) if failed is not None else None


def starts_pull(reason: str) -> bool:
    """Return whether an event with this reason says that a pull starts."""
    return reason == "Pulling"


def parse_duration(text: str) -> float:
    """Return the seconds of a duration as Go writes it, such as `1m2.5s` or `850ms`; 0 if it is none."""
    parts = _PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        return 0.0
    return min(sum(float(number) * _SECONDS[unit] for number, unit in parts), _LONGEST)


def _read_success(message: str) -> Pull | None:
    if (present := _PRESENT.match(message)) is not None:
        return Pull(present["image"], "present")
    if (pulled := _PULLED.match(message)) is None:
        return None
    seconds = parse_duration(pulled["pull"] or "")
    return Pull(pulled["image"], "pulled", seconds, max(seconds, parse_duration(pulled["total"] or "")))


def _failure(message: str) -> PullResult:
    """Return why a pull failed. An image that does not exist may look like one that is not public."""
    if _DENIED.search(message):
        return "denied"
    return "not_found" if _NOT_FOUND.search(message) else "failed"
