"""Run one command in its own namespaces: a program without dependencies, `python -I -S sandbox.py PLAN STATUS`.

Both arguments are file descriptors. PLAN contains a JSON object, see `command.py`. It is not in the command line, which
other users of the machine can read. If the sandbox cannot be created, STATUS gets the reason, and the command does not
run.

The command gets a new user, PID, mount, network, IPC, UTS and cgroup namespace, and a root file system with busybox and
three devices. It has no capabilities, cannot gain any, and can run no program but busybox. All its processes end with
it, and with the program that started this one. The exit code is the command's, or 128 plus the number of a signal.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import sys
import termios
from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
NAMESPACES = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    *(1, 2, 4, 8, 32, 4096),
    *(16384, 1 << 18),
)
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
DEVICES = ("null", "zero", "urandom")
PLACE = "/tmp"  # noqa: S108 - only the place at which the new root is mounted, in a separate mount namespace
NOT_FOUND, NOT_EXECUTABLE, NOT_CREATED = 127, 126, 125
PATH = "/bin"

libc = ctypes.CDLL(None, use_errno=True)


class SandboxError(Exception):
    """The sandbox cannot be created; the message has the reason."""


def check_result(what: str, result: int) -> None:
    """Check the result of a libc call. Raises SandboxError with `what` and the error."""
    if result != 0:
        raise SandboxError(f"{what}: {os.strerror(ctypes.get_errno())}")


def main(plan: dict[str, Any], status: int) -> int:
    """Create the namespaces, map the user, and wait for the command. Return its exit code."""
    if plan["cgroup"]:
        with contextlib.suppress(OSError):  # it only divides cpu time: a command may run without
            write_kernel_file(plan["cgroup"], "0")
    ready, entered = os.pipe()
    mapped, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready)
        os.close(go)
        run_and_exit(lambda: enter_namespaces(plan, status, entered=entered, mapped=mapped), status)
    os.close(entered)
    os.close(mapped)
    os.close(status)
    if os.read(ready, 1):
        with contextlib.suppress(OSError):  # without it the child reads the end of the pipe and exits
            map_user(child, plan["uid"])
            os.write(go, b"1")
    os.close(go)
    return wait_for_exit(child)


def enter_namespaces(plan: dict[str, Any], status: int, *, entered: int, mapped: int) -> int:
    """Enter the namespaces, then run the first process of the PID namespace."""
    die_with_parent()
    check_result("new namespaces are not permitted on this machine", libc.unshare(NAMESPACES))
    os.write(entered, b"1")
    os.close(entered)
    if not os.read(mapped, 1):
        raise SandboxError("no user can be mapped into a new user namespace on this machine")
    if plan["privileged"]:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    die_with_parent()  # a change of the user resets it
    child = os.fork()
    if child == 0:
        run_and_exit(lambda: first_process(plan, status), status)
    os.close(status)
    return wait_for_exit(child)


def first_process(plan: dict[str, Any], status: int) -> int:
    """Create the root file system, start the command, and reap every process. Return the command's exit code."""
    die_with_parent()
    allow_no_nested_users()
    host = plan["hostname"].encode()
    check_result("the host name cannot be set", libc.sethostname(host, len(host)))
    make_root(plan)
    drop_privileges()
    command = os.fork()
    if command == 0:
        run_and_exit(lambda: exec_command(plan), status)
    os.close(status)
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    while True:
        ended, found = os.wait()
        if ended == command:
            return exit_code(found)


def make_root(plan: dict[str, Any]) -> None:
    """Replace the root file system with an empty one that contains busybox, devices and /tmp."""
    flags = MS_NOSUID | MS_NODEV
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    busybox, devices = plan["busybox"], [f"/dev/{name}" for name in DEVICES]
    held = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (busybox, *devices)]
    mount("tmpfs", PLACE, "tmpfs", flags | MS_NOEXEC, f"mode=755,size={plan['disk']},nr_inodes={plan['files']}")
    os.chdir(PLACE)
    for folder in ("bin", "dev", "tmp", "old"):
        os.mkdir(folder)
    os.chmod("tmp", 0o1777)  # noqa: S103 - as anywhere
    for descriptor, target in zip(held, ("bin/busybox", *(f"dev/{name}" for name in DEVICES)), strict=True):
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o755))
        mount(f"/proc/self/fd/{descriptor}", target, None, MS_BIND)
        os.close(descriptor)
    mount(None, "bin/busybox", None, MS_BIND | MS_REMOUNT | MS_RDONLY | flags)
    for applet in plan["applets"]:
        os.symlink("busybox", f"bin/{applet}")
    check_result("the root cannot be replaced", libc.syscall(pivot_root(), b".", b"old"))
    os.chdir("/")
    check_result("the old root cannot be left", libc.umount2(b"/old", MNT_DETACH))
    os.rmdir("/old")


def pivot_root() -> int:
    """Return the number of the system call, which the C library does not wrap."""
    numbers = {"x86_64": 155, "aarch64": 41}
    try:
        return numbers[os.uname().machine]
    except KeyError:
        raise SandboxError(f"pivot_root's number is not known for {os.uname().machine}") from None


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Call mount(2). Raises SandboxError."""
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    check_result(f"mount of {target}", libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]))


def allow_no_nested_users() -> None:
    """Forbid further user namespaces inside; without them no capability can be gained."""
    with open("/proc/sys/user/max_user_namespaces", "w") as setting:
        setting.write("0")


def drop_privileges() -> None:
    """Drop every capability, also for all programs that follow."""
    capability = 0
    while libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    check_result("privileges cannot be given up", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3
    check_result("capabilities cannot be given up", libc.capset(header, (ctypes.c_uint32 * 6)()))


def exec_command(plan: dict[str, Any]) -> NoReturn:
    """Replace this process with the command."""
    os.setsid()
    if plan["tty"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for name, most in plan["limits"].items():
        resource.setrlimit(getattr(resource, name), (most, most))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    argv: list[str] = plan["command"]
    path = argv[0] if "/" in argv[0] else f"{PATH}/{argv[0]}"
    try:
        os.execve(path, argv, plan["env"])  # noqa: S606 - to run a command is what this is for
    except OSError as error:
        os.write(2, f"exec: {argv[0]}: {error.strerror}\n".encode())
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def map_user(pid: int, uid: int) -> None:
    """Map the user `uid` of this machine, which owns nothing here, as the only user inside."""
    if os.geteuid() != 0:
        write_kernel_file(f"/proc/{pid}/setgroups", "deny")
    write_kernel_file(f"/proc/{pid}/uid_map", f"0 {uid} 1")
    write_kernel_file(f"/proc/{pid}/gid_map", f"0 {uid if os.geteuid() == 0 else os.getegid()} 1")


def write_kernel_file(path: str, text: str) -> None:
    """Write a kernel file in one call."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent exits."""
    check_result("prctl", libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def run_and_exit(work: Any, status: int) -> NoReturn:
    """Exit with the result of `work`; write a failure to `status`."""
    code = NOT_CREATED
    try:
        code = work()
    except (SandboxError, OSError) as error:
        with contextlib.suppress(OSError):
            os.write(status, str(error).encode())
    finally:
        os._exit(code)


def wait_for_exit(pid: int) -> int:
    """Wait for a child, and return its exit code."""
    return exit_code(os.waitpid(pid, 0)[1])


def exit_code(found: int) -> int:
    """Return the exit code as a shell would, from the status of waitpid."""
    code = os.waitstatus_to_exitcode(found)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        write_kernel_file("/proc/self/oom_score_adj", "1000")
    os.nice(10)
    die_with_parent()
    os.set_inheritable(int(sys.argv[2]), False)
    with open(int(sys.argv[1]), "rb") as plan_file:
        wanted = json.load(plan_file)
    sys.exit(main(wanted, int(sys.argv[2])))
