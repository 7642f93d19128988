"""Processes of the platform: queries of the supervisor, and waits until a process serves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import psutil

from vkgateway.api.errors import UnavailableError
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.planes.supervisor.client import StartWait, SupervisorClient
from vkgateway.planes.supervisor.procfs import list_marked
from vkgateway.planes.supervisor.spec import RESERVED, ProcessState, SupervisorPaths

_POLL: Final = 0.1
_RESTARTS: Final = 3
"""Failed starts before a process counts as broken."""


def list_unsupervised(data_dir: Path, *, why: str) -> list[ProcessState]:
    """Return the platform's running processes while its supervisor does not answer."""
    paths = SupervisorPaths(data_dir)
    found = {p.name: p.pid for p in list_marked(data_dir.resolve()) if p.is_leader and p.name not in RESERVED}
    return [
        ProcessState(
            name=name,
            state="running",
            pid=pid,
            restarts=0,
            since=psutil.Process(pid).create_time() if psutil.pid_exists(pid) else 0.0,
            reason=why,
            log=str(paths.log_path(name)),
            argv=(),
        )
        for name, pid in sorted(found.items())
    ]


def listening_ports(data_dir: Path) -> set[int]:
    """Return the TCP ports at which the platform's processes listen, with or without a supervisor."""
    held: set[int] = set()
    for process in list_marked(data_dir.resolve()):
        try:
            connections = psutil.Process(process.pid).net_connections("tcp")
        except psutil.Error:
            continue
        held.update(c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN)
    return held


async def wait_until_serving(
    serves: Callable[[], Awaitable[bool]],
    *,
    process: str,
    client: SupervisorClient,
    timeout: float = 60.0,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Wait until `serves` returns true, at most `timeout` seconds without work of the process (`StartWait`).

    Raises:
        UnavailableError: the time is over, or `process` keeps exiting; the message has the end of its log.
    """
    before = await _process_state(client, process)
    restarts = before.restarts if before else 0
    began = clock.monotonic()
    limit = StartWait(timeout, now=began)
    while not await serves():
        state = await _process_state(client, process)
        if state is not None and state.restarts - restarts >= _RESTARTS:
            raise _failure_error(state, why="keeps ending")
        now = clock.monotonic()
        if limit.is_over(state.pid if state is not None else None, now):
            raise (
                _failure_error(state, why=f"does not serve within {now - began:.0f} s")
                if state
                else _missing_error(process)
            )
        await clock.sleep(_POLL)


async def api_ready(client: Client) -> bool:
    """Return whether an API server is ready."""
    try:
        await client.request("GET", "/readyz", timeout=3)
    except errors.ApiError:
        return False
    return True


async def _process_state(client: SupervisorClient, process: str) -> ProcessState | None:
    return next((state for state in await client.list_processes(process) if state.name == process), None)


def _failure_error(state: ProcessState, *, why: str) -> UnavailableError:
    reason = state.reason or "it has logged nothing yet"
    return UnavailableError(f"{state.name} {why}: {reason}", hint=f"See {state.log}.")


def _missing_error(process: str) -> UnavailableError:
    return UnavailableError(f"{process} is not among the platform's processes", hint="Run `vkgateway up` again.")
