"""Runs of a tool with its output by line; an interrupted run leaves no process."""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_KEPT_LINES = 400
_LINE_LIMIT = 1024 * 1024
_PR_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None)


def _prepare_child() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if niceness := os.getpriority(os.PRIO_PROCESS, 0):
        set_niceness(niceness)


def set_niceness(niceness: int) -> None:
    """Set the priority of this thread and of the children that it starts from now on.

    With autogroups (sched(7)), niceness counts within a session only. So that of the session is set too, and again in
    each child with its own session.
    """
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness))


async def run_program(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    on_line: Callable[[str], None] = lambda _: None,
    log: Path | None = None,
) -> tuple[int, list[str]]:
    """Run a program and return its exit code and the last lines of its output (both streams together).

    The program has its own session, so Ctrl-C does not reach it. A cancelled call kills its process group. If this
    process is killed, the kernel kills the program.

    Raises:
        OSError: the program cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
        cwd=cwd,
        limit=_LINE_LIMIT,
        start_new_session=True,
        preexec_fn=_prepare_child,
    )
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(log.open("a", encoding="utf-8")) if log else None
            assert process.stdout is not None
            async for raw in process.stdout:
                line = raw.decode(errors="replace").rstrip()
                lines.append(line)
                on_line(line)
                if file is not None:
                    file.write(line + "\n")
        return await process.wait(), list(lines)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise


async def read_version_output(path: Path, args: Sequence[str]) -> str:
    """Return the version output of a program; empty if it fails or takes too long."""
    try:
        async with asyncio.timeout(20):
            code, lines = await run_program([str(path), *args], env=dict(os.environ), cwd=Path("/"))
    except (OSError, TimeoutError):
        return ""
    return "\n".join(lines) if code == 0 else ""
