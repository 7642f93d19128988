"""Attacks on the sandbox: each is a command that a tenant could run, and none escapes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.machine import patience
from tests.support.waiting import wait_until
from vkgateway.api.errors import UnavailableError
from vkgateway_platform.embedded.hollow.kubelet.command import Command, CommandSpec
from vkgateway_platform.embedded.hollow.kubelet.tenant_cgroups import TenantCgroups
from vkgateway_platform.embedded.realnode.probe import static_busybox

pytestmark = pytest.mark.skipif(
    not static_busybox()
    or subprocess.run(["unshare", "-Ur", "true"], check=False, capture_output=True).returncode != 0,
    reason="needs a static busybox and user namespaces",
)


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


@asynccontextmanager
async def started(*argv: str, stdin: bool = False, tty: bool = False, cgroup: str = "") -> AsyncIterator[Command]:
    command = await Command.start(CommandSpec(argv=argv, hostname="web", stdin=stdin, tty=tty, cgroup=cgroup))
    try:
        yield command
    finally:
        await command.kill()


async def read_all(command: Command, name: str) -> str:
    parts = []
    while data := await command.read(name):
        parts.append(data)
    return b"".join(parts).decode()


async def run_in_sandbox(*argv: str) -> CommandResult:
    async with started(*argv) as command:
        out, err = await asyncio.gather(read_all(command, "stdout"), read_all(command, "stderr"))
        return CommandResult(await command.wait(), out, err)


async def shell(script: str) -> CommandResult:
    return await run_in_sandbox("sh", "-c", script)


async def until_gone(pids: list[int]) -> None:
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    _, left = await asyncio.to_thread(psutil.wait_procs, processes, patience(10))
    assert not left


def inside(parent: int) -> list[int]:
    """Return all descendants of a process."""
    try:
        children = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []
    return [*children, *(deeper for child in children for deeper in inside(child))]


@pytest.mark.parametrize(
    ("script", "code", "out"),
    [
        ("echo out; exit 7", 7, "out\n"),
        ("kill -9 $$", 137, ""),
        ("hostname; id -u; pwd; echo $HOME $PATH", 0, "web\n0\n/\n/tmp /bin\n"),
        ("echo kept > /tmp/file; cat /tmp/file", 0, "kept\n"),
        ("sleep 1000 & echo hi", 0, "hi\n"),
    ],
)
async def test_command_runs_and_returns_its_exit_code(script: str, code: int, out: str) -> None:
    found = await shell(script)
    assert (found.code, found.out) == (code, out), found


async def test_command_joins_the_cgroup_of_its_tenant(tmp_path: Path) -> None:
    file = tmp_path / "cgroup.procs"
    file.touch()
    async with started("true", cgroup=str(file)) as command:
        assert await command.wait() == 0
    assert file.read_text() == "0"


async def test_command_runs_without_a_cgroup_that_cannot_be_joined(tmp_path: Path) -> None:
    async with started("true", cgroup=str(tmp_path / "absent")) as command:
        assert await command.wait() == 0


async def test_all_processes_of_a_command_are_in_the_real_cgroup(tmp_path: Path) -> None:
    async with TenantCgroups(tmp_path) as cgroups:
        with cgroups.hold_group("alpha") as cgroup:
            if not cgroup:
                pytest.skip("cgroups cannot be written here")
            async with started("sh", "-c", "sleep 1000 & sleep 1000", cgroup=cgroup):
                await wait_until(lambda: len(Path(cgroup).read_text().split()) >= 4)
    await wait_until(lambda: not Path(cgroup).exists())


async def test_missing_command_exits_with_127() -> None:
    found = await run_in_sandbox("python3")
    assert found.code == 127
    assert "python3" in found.err


async def test_input_reaches_the_command() -> None:
    async with started("cat", stdin=True) as command:
        assert command.stdin is not None
        command.stdin.write(b"through and back")
        command.stdin.write_eof()
        assert await read_all(command, "stdout") == "through and back"
        assert await command.wait() == 0


async def test_terminal_has_a_size() -> None:
    async with started("sh", "-c", "read line; stty size", tty=True) as command:
        command.resize(columns=111, rows=33)
        assert command.stdin is not None
        command.stdin.write(b"\n")
        assert "33 111" in await read_all(command, "stdout")


async def test_machine_is_not_visible() -> None:
    found = await shell("ls -a / /dev /tmp; env")
    names = {"bin", "dev", "tmp", "null", "urandom", "zero", ".", "..", "/:", "/dev:", "/tmp:"}
    variables = {"HOME=/tmp", "HOSTNAME=web", "PATH=/bin", "SHLVL=1", "PWD=/"}
    assert set(found.out.split()) == names | variables


@pytest.mark.parametrize(
    "script",
    [
        "cat /proc/1/environ",
        "ls /proc/self",
        "mount -t proc proc /tmp",
        "mount -t tmpfs tmpfs /tmp",
        "mount --bind / /tmp",
        "chroot /tmp /bin/sh",
        "unshare -r id",
        "unshare -n id",
        "mknod /tmp/disk b 8 0",
        "echo x > /bin/busybox",
        "cp /bin/busybox /tmp/own && /tmp/own id",
        "nsenter -t 1 -m id",
        "pivot_root / /tmp",
        "umount /bin/busybox",
        "hostname other",
        "ip link set lo up",
        "wget -T 2 -O - http://127.0.0.1:9631/healthz",
        "chown 5 /tmp",
        "su nobody",
        "reboot -f",
        "renice -n -20 -p 1",
    ],
)
async def test_sandbox_cannot_be_escaped(script: str) -> None:
    found = await shell(script)
    assert found.code != 0, found


async def test_other_commands_cannot_be_seen_or_killed() -> None:
    """Not even a command of the same pod."""
    async with started("sleep", "1000") as other:
        found = await shell("kill -9 -1; for pid in $(seq 2 400); do kill -0 $pid 2>/dev/null && echo $pid; done")
        assert len(found.out.split()) <= 1, "only the shell itself"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other.wait(), 0.1)


async def test_each_command_has_its_own_user_id() -> None:
    if os.geteuid() != 0:
        pytest.skip("without root all are the platform's own user")
    async with started("sleep", "1000") as one, started("sleep", "1000") as other:
        users = [
            {os.stat(f"/proc/{pid}").st_uid for pid in inside(command._process.pid)[1:]} for command in (one, other)
        ]
    assert not users[0] & users[1]
    assert not {0, 65534} & (users[0] | users[1])


@pytest.mark.parametrize(
    "script",
    [
        "f() { f | f & }; f; sleep 1; echo done",
        "dd if=/dev/zero of=/tmp/a bs=1M count=100; dd if=/dev/zero of=/tmp/b bs=1M count=100; ls -l /tmp",
        "x=0; while true; do x=$x$x; done",
        "i=0; while [ $i -lt 3000 ]; do echo > /tmp/$i || exit 1; i=$((i+1)); done",
    ],
)
async def test_command_with_excessive_use_is_stopped(script: str) -> None:
    async with started("sh", "-c", script) as command, asyncio.timeout(patience(30)):
        pid = command._process.pid
        deepest = 0
        ended = asyncio.create_task(command.wait())
        reading = asyncio.gather(read_all(command, "stdout"), read_all(command, "stderr"))
        while not ended.done():
            deepest = max(deepest, len(inside(pid)))
            await asyncio.sleep(0.05)
        await reading
    assert deepest <= 40


@pytest.mark.parametrize("how", ["killed", "parent killed"])
async def test_no_process_outlives_the_command(how: str) -> None:
    async with started("sh", "-c", "setsid sleep 1000 & sleep 1000 & echo up; sleep 1000") as command:
        assert await command.read("stdout") == b"up\n"
        processes = inside(command._process.pid)
        assert len(processes) >= 4
        if how == "killed":
            await command.kill()
        else:
            os.kill(processes[0], signal.SIGKILL)
        await until_gone(processes)


async def test_machine_without_namespaces_refuses_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkgateway_platform.embedded.hollow.kubelet.command._sandbox_plan", _impossible)
    with pytest.raises(UnavailableError, match="cannot be isolated on this machine"):
        await Command.start(CommandSpec(argv=("true",), hostname="web"))


def _impossible(_: CommandSpec) -> dict[str, object]:
    return {"uid": -1, "privileged": True, "cgroup": ""}


async def test_machine_without_busybox_refuses_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkgateway_platform.embedded.hollow.kubelet.command.static_busybox", lambda: False)
    with pytest.raises(UnavailableError, match="static /bin/busybox"):
        await Command.start(CommandSpec(argv=("true",), hostname="web"))
