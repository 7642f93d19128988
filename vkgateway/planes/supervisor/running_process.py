"""One live process: started or adopted, watched through a pidfd, stopped with its process group."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from vkgateway.planes.supervisor import logs, procfs
from vkgateway.planes.supervisor.spec import ProcessSpec, SupervisorPaths

_INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_DATA_HOME", "XDG_CACHE_HOME")
_KILLED_SECONDS = 10.0
"""Seconds to wait for a process after the first SIGKILL."""
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class RunningProcess:
    """A process that was alive when this object was created.

    Attributes:
        pid: process id, which is also its process group and session.
        started: start time in clock ticks since boot.
        ended: set when the process is dead and, if it was a child, reaped.
        how: how the process ended, in words; empty before.
    """

    def __init__(self, pid: int, *, child: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self.ended = asyncio.Event()
        self.exit_text = ""
        self._child = child
        self._pidfd = os.pidfd_open(pid)
        self.started = procfs.start_ticks(pid) or 0
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_end)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        if self._child is None:
            self.exit_text = "exited (its exit code went to an earlier supervisor)"
        else:
            # Until it is reaped, its pid cannot become the group of another process.
            self._signal_group(signal.SIGKILL)
            self.exit_text = describe_exit(self._child.wait())
        os.close(self._pidfd)
        self.ended.set()

    async def terminate(self, *, timeout: float) -> bool:
        """Send SIGTERM to the process group, and SIGKILL after `timeout` seconds; return whether it ended.

        The kernel cannot end a process that waits for a disk that does not answer.
        """
        for number, patience in ((signal.SIGTERM, timeout), (signal.SIGKILL, _KILLED_SECONDS)):
            if self.ended.is_set():
                break
            self._signal_group(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self.ended.wait()
        return self.ended.is_set()

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def spawn_process(spec: ProcessSpec, *, paths: SupervisorPaths) -> RunningProcess:
    """Start the program in its own session, with its output appended to its log.

    Raises:
        OSError: it cannot start (no such program, not executable, no directory, no free process).
    """
    paths.log_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    output = logs.open_log(paths.log_path(spec.name))
    try:
        with timer_slack(spec.timer_slack), batch_scheduling(on=spec.batch):
            child = subprocess.Popen(
                spec.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=spec.cwd or paths.data_dir,
                env=process_environment(spec, data_dir=paths.data_dir, inherited=os.environ),
                start_new_session=True,
            )
    finally:
        os.close(output)
    return RunningProcess(child.pid, child=child)


def adopt_process(process: procfs.MarkedProcess) -> RunningProcess | None:
    """Watch a process that an earlier supervisor started; return None if it has ended."""
    try:
        running = RunningProcess(process.pid, child=None)
    except ProcessLookupError:
        return None
    if running.started != process.started:
        return None
    return running


def process_environment(spec: ProcessSpec, *, data_dir: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process: a few inherited variables, those of its spec, and the mark."""
    base = {name: inherited[name] for name in _INHERITED if name in inherited}
    base.setdefault("PATH", _DEFAULT_PATH)
    mark = procfs.mark_value(data_dir, name=spec.name, rank=spec.stop_rank, digest=spec.short_digest())
    return {**base, **spec.env, procfs.MARK_VARIABLE: mark}


def describe_exit(code: int) -> str:
    """Describe a Popen return code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def stop_marked(
    processes: list[procfs.MarkedProcess], *, timeout: float, kill_at_once: bool = False
) -> list[procfs.MarkedProcess]:
    """Stop processes that are not children, blocking: SIGTERM, then SIGKILL after `timeout` seconds.

    Return those that survive: the kernel cannot end a process that waits for a disk that does not answer.
    """
    alive = [process for process in processes if _is_alive(process)]
    deadline = time.monotonic() + timeout
    for process in alive:
        _send_signal(process, signal.SIGKILL if kill_at_once else signal.SIGTERM)
    while alive := [process for process in alive if _is_alive(process)]:
        late = time.monotonic() - deadline
        if late > _KILLED_SECONDS:
            break
        if late > 0:
            for process in alive:
                _send_signal(process, signal.SIGKILL)
        time.sleep(0.02)
    return alive


def _is_alive(process: procfs.MarkedProcess) -> bool:
    return procfs.start_ticks(process.pid) == process.started


def _send_signal(process: procfs.MarkedProcess, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if _is_alive(process):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def batch_scheduling(*, on: bool) -> Iterator[None]:
    """Start child processes of this thread with batch scheduling within the block, if `on`.

    A child inherits it across fork and exec, and so does each of its threads (sched(7), SCHED_BATCH). Nothing happens
    if it is not permitted: it only saves CPU time.
    """
    if not on:
        yield
        return
    before = os.sched_getscheduler(0)
    with contextlib.suppress(OSError):
        _set_policy(os.SCHED_BATCH)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            _set_policy(before)


def _set_policy(policy: int) -> None:
    os.sched_setscheduler(0, policy, os.sched_param(0))


_PR_SET_TIMERSLACK = 29
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def timer_slack(seconds: float) -> Iterator[None]:
    """Set the timer slack of child processes that this thread starts within the block; 0 for the thread's own.

    A child inherits it across fork and exec, and so does each of its threads (prctl(2)).
    """
    if seconds <= 0:
        yield
        return
    _set_slack(round(seconds * 1e9))
    try:
        yield
    finally:
        _set_slack(0)  # restore the thread's original slack


def _set_slack(nanoseconds: int) -> None:
    if _libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(nanoseconds), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
