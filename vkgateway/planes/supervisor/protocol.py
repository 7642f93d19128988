"""Protocol between client and supervisor: one line of JSON in each direction over a Unix socket."""

import msgspec

from vkgateway.planes.supervisor.spec import ProcessSpec, ProcessState

LINE_LIMIT = 4 * 1024 * 1024
"""Maximum length of a request or answer, in bytes."""


class Ensure(msgspec.Struct, frozen=True, tag="ensure"):
    """Start a process and keep it running."""

    spec: ProcessSpec


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """Stop and forget a process, or with `group` everything below the name."""

    name: str
    group: bool = False


class ListProcesses(msgspec.Struct, frozen=True, tag="list"):
    """List the processes at or below a prefix."""

    prefix: str = ""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Stop everything in order, then the supervisor itself."""


Request = Ensure | Remove | ListProcesses | Shutdown


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a request: the states of its processes, or the reason of the refusal."""

    processes: list[ProcessState] = []
    error: str = ""
