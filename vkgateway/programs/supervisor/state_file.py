"""run/processes.json: what the supervisor was asked for, so that its successor goes on where it stopped."""

import os

import msgspec

from vkgateway.programs.supervisor.spec import ProcessSpec, SupervisorPaths


class ProcessRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One process asked for. `pid` and `started` (clock ticks since boot) are 0 while it is not running."""

    spec: ProcessSpec
    pid: int = 0
    started: int = 0
    restarts: int = 0
    since: float = 0.0
    reason: str = ""
    log_start: int = 0
    """The length of its log, in bytes, when it was last started."""


class StateFile(msgspec.Struct, kw_only=True):
    """The whole file."""

    version: int = 1
    processes: list[ProcessRecord] = []


def load_records(paths: SupervisorPaths) -> list[ProcessRecord]:
    """The processes asked for; none if there is no file.

    Raises:
        msgspec.MsgspecError: the file is damaged, or of another version of this program.
        OSError: it cannot be read.
    """
    try:
        data = paths.state_path.read_bytes()
    except FileNotFoundError:
        return []
    state = msgspec.json.decode(data, type=StateFile)
    if state.version != 1:
        raise msgspec.ValidationError(f"version {state.version} is not 1")
    return state.processes


def save_records(paths: SupervisorPaths, records: list[ProcessRecord]) -> None:
    """Replace the file in one step; an empty list removes it."""
    if not records:
        paths.state_path.unlink(missing_ok=True)
        return
    new = paths.state_path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(StateFile(processes=records)))
    os.chmod(new, 0o600)
    new.replace(paths.state_path)
