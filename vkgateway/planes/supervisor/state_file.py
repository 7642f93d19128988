"""run/processes.json: the requested processes, from which the next supervisor continues."""

import os

import msgspec

from vkgateway.planes.supervisor.spec import ProcessSpec, SupervisorPaths


class ProcessRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A requested process. `pid` and `started` (clock ticks since boot) are 0 while it does not run."""

    spec: ProcessSpec
    pid: int = 0
    started: int = 0
    restarts: int = 0
    since: float = 0.0
    reason: str = ""
    log_start: int = 0
    """Length of its log in bytes at the last start."""


class StateFile(msgspec.Struct, kw_only=True):
    """Content of the file."""

    version: int = 1
    processes: list[ProcessRecord] = []


def load_records(paths: SupervisorPaths) -> list[ProcessRecord]:
    """Return the requested processes; none if there is no file.

    Raises:
        msgspec.MsgspecError: the file is damaged, or from another version of this program.
        OSError: the file is not readable.
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
    """Replace the file atomically; an empty list deletes it."""
    if not records:
        paths.state_path.unlink(missing_ok=True)
        return
    new = paths.state_path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(StateFile(processes=records)))
    os.chmod(new, 0o600)
    new.replace(paths.state_path)
