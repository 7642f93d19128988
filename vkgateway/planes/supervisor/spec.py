"""Specs and states of processes, and the supervisor's files."""

import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from vkgateway.api.errors import InputError

State = Literal["starting", "running", "backoff", "stopping"]

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*(/[a-z0-9][a-z0-9-]*)*")
_NAME_LIMIT = 128

RESERVED = ("supervisor", "guardian")
"""Names of the supervisor's own processes."""


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process to keep running.

    The process inherits only a few variables of the supervisor's environment (`PATH`, `HOME`, locale, time zone,
    `TMPDIR`, XDG directories); `env` has everything else. So a proxy or kubeconfig in a user's shell never changes how
    the platform runs.
    """

    name: str
    """Lower-case segments joined by `/`: `etcd`, `compute/apiserver`, `tenant/alpha/apiserver`."""
    argv: tuple[str, ...]
    """The program (an absolute path, or a name on PATH) and its arguments."""
    env: dict[str, str] = {}
    """Variables in addition to the inherited ones."""
    cwd: str | None = None
    """Working directory; None for the data directory."""
    stop_rank: int = 50
    """In an ordered stop, higher ranks stop first and equal ranks together."""
    stop_timeout: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""
    timer_slack: float = 0.0
    """Maximum delay of its timers in seconds, so that an idle process wakes up less often; 0 for the default slack."""
    batch: bool = False
    """Whether it uses batch scheduling, so that a wake-up preempts no running process; its children inherit it."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _NAME_LIMIT:
            raise InputError(f"process name {self.name!r} is not lower-case letters, digits and dashes, joined by '/'")
        if self.name in RESERVED:
            raise InputError(f"process name {self.name!r} is reserved for the supervisor")
        if not 0 <= self.timer_slack <= 1:
            raise InputError(f"process {self.name!r} has a timer slack of {self.timer_slack} s; the range is 0 to 1")
        if not self.argv:
            raise InputError(f"process {self.name!r} has no command line")
        if any("\0" in text for text in (*self.argv, *self.env, *self.env.values())):
            raise InputError(f"process {self.name!r} has a zero byte in its command line or environment")

    def short_digest(self) -> str:
        """Return a short digest of the spec; equal specs have the same."""
        canonical = msgspec.json.encode(self, order="deterministic")
        return hashlib.sha256(canonical).hexdigest()[:16]


class ProcessState(msgspec.Struct, kw_only=True):
    """Current state of a supervised process."""

    name: str
    state: State
    """`starting` in the first second, `running` afterwards, `backoff` while waiting for the next start."""
    pid: int | None
    """Process id, None in `backoff`."""
    restarts: int
    """Starts after the first one."""
    since: float
    """Start of this state, in seconds since the epoch."""
    reason: str
    """How the process last ended, with the error line of its log; empty if it never did."""
    log: str
    """Path of its log file."""
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SupervisorPaths:
    """The supervisor's files in a data directory."""

    data_dir: Path

    @property
    def run_dir(self) -> Path:
        """Directory of files that matter only while something runs."""
        return self.data_dir / "run"

    @property
    def log_dir(self) -> Path:
        """Directory of log files, one per process."""
        return self.data_dir / "logs"

    @property
    def socket_path(self) -> Path:
        """Unix socket of the supervisor."""
        return self.run_dir / "supervisor.sock"

    @property
    def lock_path(self) -> Path:
        """Lock (flock) that a supervisor holds while it lives."""
        return self.run_dir / "supervisor.lock"

    @property
    def state_path(self) -> Path:
        """File with the requested processes, their pids and start times."""
        return self.run_dir / "processes.json"

    @property
    def command_line(self) -> list[str]:
        """Return the command line of this data directory's supervisor."""
        return [sys.executable, "-P", "-m", "vkgateway.planes.supervisor", "--data-dir", str(self.data_dir)]

    def log_path(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.log_dir / f"{name.replace('/', '.')}.log"


def in_group(name: str, prefix: str) -> bool:
    """Return whether `name` is `prefix` or below it; `tenant/a` contains `tenant/a/etcd` but not `tenant/ab/etcd`.

    The empty prefix contains every name.
    """
    prefix = prefix.rstrip("/")
    return not prefix or name == prefix or name.startswith(prefix + "/")
