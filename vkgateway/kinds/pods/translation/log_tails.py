"""Last lines of a container's log, stored as its termination message when an eviction ends the pod.

Pure.

The bounds are those of a kubelet that falls back to the log for a termination message (pkg/kubelet/container and
pkg/kubelet/kuberuntime: MaxContainerTerminationMessageLogLength, MaxContainerTerminationMessageLogLines).
"""

from collections.abc import Iterator, Mapping
from typing import Final

from vkgateway.api.objects import Object

MAX_LINES: Final = 80
MAX_BYTES: Final = 2048
"""UTF-8 bytes of one container's message."""
MAX_POD_BYTES: Final = 12 * 1024
"""UTF-8 bytes of all messages of a pod."""

_STATUS_LISTS: Final = ("initContainerStatuses", "containerStatuses")


def readable_containers(status: Object) -> list[str]:
    """Return the containers that have a log and no termination message yet."""
    return [one["name"] for one in _container_statuses(status) if _has_log(one.get("state") or {})]


def _container_statuses(status: Object) -> Iterator[Object]:
    for key in _STATUS_LISTS:
        yield from status.get(key) or ()


def _has_log(state: Object) -> bool:
    ended = state.get("terminated")
    return "running" in state or (ended is not None and not ended.get("message"))


def cut_log(log: bytes, *, containers: int) -> str:
    """Return the last lines of a log, for a pod of which `containers` logs are stored."""
    most = min(MAX_BYTES, MAX_POD_BYTES // max(1, containers))
    lines = log.decode("utf-8", "replace").splitlines(keepends=True)[-MAX_LINES:]
    kept: list[str] = []
    left = most
    for line in reversed(lines):
        left -= len(line.encode())
        if left < 0:
            break
        kept.append(line)
    if not kept and lines:
        return lines[-1].encode()[-most:].decode("utf-8", "ignore")
    return "".join(reversed(kept))


def with_tails(status: Object, tails: Mapping[str, str]) -> Object:
    """Return a pod's status with `tails` (by container) as the messages of terminated containers without one."""
    if not tails:
        return status
    lists = {key: [_with_tail(one, tails) for one in status[key]] for key in _STATUS_LISTS if status.get(key)}
    return {**status, **lists}


def _with_tail(container: Object, tails: Mapping[str, str]) -> Object:
    tail, ended = tails.get(container["name"]), (container.get("state") or {}).get("terminated")
    if not tail or ended is None or ended.get("message"):
        return container
    return {**container, "state": {**container["state"], "terminated": {**ended, "message": tail}}}
