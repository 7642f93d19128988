"""One command in a sandbox: start, input, output, kill."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import struct
import sys
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

from vkgateway.api.errors import UnavailableError
from vkgateway_platform.embedded.realnode.host import run_command
from vkgateway_platform.embedded.realnode.images import BUSYBOX
from vkgateway_platform.embedded.realnode.probe import static_busybox

_PROGRAM: Final = Path(__file__).with_name("sandbox.py")
_FIRST_USER: Final = 1_879_048_192
_USERS: Final = 1 << 20
"""User ids of commands, one each, from a range that no Linux distribution uses."""
_MIB: Final = 1 << 20
_DISK: Final = 8 * _MIB
_LIMITS: Final[Mapping[str, int]] = {
    "RLIMIT_NPROC": 32,
    "RLIMIT_AS": 64 * _MIB,
    "RLIMIT_FSIZE": _DISK,
    "RLIMIT_NOFILE": 128,
    "RLIMIT_CORE": 0,
    "RLIMIT_MSGQUEUE": 0,
}
"""Limits per process, except for the number of processes, which is the total."""
_FILES: Final = 1024
_STATUS_MAX: Final = 4096
_CHUNK: Final = 32 * 1024

_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """A requested command; `hostname` is the pod's name, `cgroup` the file through which it joins one (see
    `TenantCgroups`).
    """

    argv: tuple[str, ...]
    hostname: str
    stdin: bool = False
    tty: bool = False
    cgroup: str = ""


class Command:
    """A running command. `start` creates one; `kill` ends it with all its processes."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        *,
        stdin: asyncio.StreamWriter | None,
        outputs: Mapping[str, asyncio.StreamReader],
        terminal: int | None = None,
    ) -> None:
        self._process = process
        self.stdin: Final = stdin
        self.outputs: Final = outputs
        self._terminal = terminal

    @classmethod
    async def start(cls, wanted: CommandSpec) -> Self:
        """Start a command. Raises UnavailableError, with the reason, if this machine cannot make the sandbox."""
        if not static_busybox():
            raise UnavailableError(f"exec on hollow nodes needs a static {BUSYBOX}, which this machine does not have")
        terminal = _Terminal() if wanted.tty else None
        status_end, status_fd = os.pipe()
        plan = _memory_file(json.dumps(_sandbox_plan(wanted)).encode())
        try:
            argv = (sys.executable, "-I", "-S", str(_PROGRAM), str(plan), str(status_fd))
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=terminal.command_end if terminal else pipe if wanted.stdin else asyncio.subprocess.DEVNULL,
                stdout=terminal.command_end if terminal else pipe,
                stderr=terminal.command_end if terminal else pipe,
                pass_fds=(plan, status_fd),
                env={},
                start_new_session=True,
            )
        except OSError:
            os.close(status_end)
            if terminal is not None:
                terminal.close()
            raise
        finally:
            os.close(status_fd)
            os.close(plan)
            if terminal is not None:
                os.close(terminal.command_end)
        command = await cls._with_streams(process, terminal)
        if refusal := await _read_all(status_end):
            await command.kill()
            raise UnavailableError(f"exec on hollow nodes cannot be isolated on this machine: {refusal}")
        return command

    @classmethod
    async def _with_streams(cls, process: asyncio.subprocess.Process, terminal: _Terminal | None) -> Self:
        if terminal is None:
            assert process.stdout is not None
            assert process.stderr is not None
            outputs = {"stdout": process.stdout, "stderr": process.stderr}
            return cls(process, stdin=process.stdin, outputs=outputs)
        reader, writer = await terminal.open_streams()
        return cls(process, stdin=writer, outputs={"stdout": reader}, terminal=terminal.our_end)

    async def read(self, name: str) -> bytes:
        """Return the next bytes of an output; none at its end."""
        try:
            return await self.outputs[name].read(_CHUNK)
        except OSError:  # a closed terminal
            return b""

    def resize(self, *, columns: int, rows: int) -> None:
        """Tell the command's terminal its size; nothing happens without one."""
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                _set_size(self._terminal, columns=columns, rows=rows)

    async def wait(self) -> int:
        """Wait for the command to exit, and return its exit code."""
        return await self._process.wait()

    async def kill(self) -> None:
        """Kill the command; the kernel kills all its processes."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self.stdin is not None:
            self.stdin.close()


class _Terminal:
    """A pseudo terminal: `command_end` is the command's, `our_end` the other."""

    def __init__(self) -> None:
        self.our_end, self.command_end = os.openpty()
        _set_size(self.our_end, columns=80, rows=24)  # until the client sends its size

    def close(self) -> None:
        os.close(self.our_end)

    async def open_streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a reader and a writer of our end; it is closed with both."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await loop.connect_read_pipe(lambda: protocol, os.fdopen(self.our_end, "rb", buffering=0))
        other = os.fdopen(os.dup(self.our_end), "wb", buffering=0)
        transport, writing = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, other)
        return reader, asyncio.StreamWriter(transport, writing, None, loop)


def _set_size(terminal: int, *, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", min(rows, 0xFFFF), min(columns, 0xFFFF), 0, 0))


def _sandbox_plan(wanted: CommandSpec) -> dict[str, Any]:
    is_root = os.geteuid() == 0
    env = {"PATH": "/bin", "HOME": "/tmp", "HOSTNAME": wanted.hostname}  # noqa: S108 - the sandbox's own
    return {
        "uid": _FIRST_USER + next(_numbers) % _USERS if is_root else os.geteuid(),
        "privileged": is_root,
        "busybox": str(BUSYBOX.resolve()),
        "applets": _list_applets(),
        "hostname": wanted.hostname[:64],
        "disk": _DISK,
        "files": _FILES,
        "tty": wanted.tty,
        "command": wanted.argv,
        "cgroup": wanted.cgroup,
        "env": env | ({"TERM": "xterm"} if wanted.tty else {}),
        "limits": _LIMITS,
    }


def _memory_file(data: bytes) -> int:
    """Return a descriptor from which `data` can be read."""
    descriptor = os.memfd_create("plan")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


@lru_cache(maxsize=1)
def _list_applets() -> Sequence[str]:
    return [name for name in run_command(str(BUSYBOX), "--list").split() if name != "busybox"]


async def _read_all(descriptor: int) -> str:
    """Read a pipe to its end, and close it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        return (await reader.read(_STATUS_MAX)).decode(errors="replace")
    finally:
        transport.close()
