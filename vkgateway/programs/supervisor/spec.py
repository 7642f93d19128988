"""What the supervisor is asked to keep running, what it answers, and where its files lie."""

import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from vkgateway.model.errors import InputError

State = Literal["starting", "running", "backoff", "stopping"]

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*(/[a-z0-9][a-z0-9-]*)*")
_NAME_LIMIT = 128

RESERVED = ("supervisor", "guardian")
"""The supervisor's own processes."""


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process to keep running.

    The process inherits only a few variables of the supervisor's own environment (`PATH`, `HOME`,
    locale, time zone, `TMPDIR`, XDG folders); everything else it needs stands in `env`. So a proxy or a
    kubeconfig in somebody's shell never changes how the platform runs.
    """

    name: str
    """Lower-case segments joined by `/`: `etcd`, `compute/apiserver`, `tenant/alpha/apiserver`."""
    argv: tuple[str, ...]
    """The program (an absolute path, or a name looked up on PATH) and its arguments."""
    env: dict[str, str] = {}
    """Variables added to the small inherited environment."""
    cwd: str | None = None
    """Working directory; the data directory when None."""
    stop_rank: int = 50
    """In an ordered stop the higher rank stops first; equal ranks stop together."""
    stop_timeout: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""
    timer_slack: float = 0.0
    """Seconds by which its timers may be late, so that an idle process wakes up less often; 0 for the usual slack."""
    batch: bool = False
    """Whether it waits for its turn when it wakes up, and does not interrupt who is at work; its children do so too."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _NAME_LIMIT:
            raise InputError(f"process name {self.name!r} is not lower-case letters, digits and dashes, joined by '/'")
        if self.name in RESERVED:
            raise InputError(f"process name {self.name!r} is the supervisor's own")
        if not 0 <= self.timer_slack <= 1:
            raise InputError(f"process {self.name!r} has a timer slack of {self.timer_slack} s; it is from 0 to 1")
        if not self.argv:
            raise InputError(f"process {self.name!r} has no command line")
        if any("\0" in text for text in (*self.argv, *self.env, *self.env.values())):
            raise InputError(f"process {self.name!r} has a zero byte in its command line or environment")

    def short_digest(self) -> str:
        """A short name for this very spec: equal specs share it, however they were written."""
        canonical = msgspec.json.encode(self, order="deterministic")
        return hashlib.sha256(canonical).hexdigest()[:16]


class ProcessState(msgspec.Struct, kw_only=True):
    """One supervised process as it is now."""

    name: str
    state: State
    """`starting` in its first second, `running` after that, `backoff` while waiting for its next start."""
    pid: int | None
    """The live process, None while in `backoff`."""
    restarts: int
    """Starts since it was first asked for, the first one not counted."""
    since: float
    """When this state began, in seconds since the epoch."""
    reason: str
    """How it last ended, with the telling line of its log; empty if it never did."""
    log: str
    """Path of its log file."""
    argv: tuple[str, ...]
    next_start: float | None = None
    """When it is started again, in seconds since the epoch; only in `backoff`."""


@dataclass(frozen=True, slots=True)
class SupervisorPaths:
    """The supervisor's files in one data directory."""

    data_dir: Path

    @property
    def run_dir(self) -> Path:
        """Holds what is only of use while something runs."""
        return self.data_dir / "run"

    @property
    def log_dir(self) -> Path:
        """Holds a log file for each process."""
        return self.data_dir / "logs"

    @property
    def socket_path(self) -> Path:
        """The Unix socket at which the supervisor answers."""
        return self.run_dir / "supervisor.sock"

    @property
    def lock_path(self) -> Path:
        """Locked (flock) as long as a supervisor lives."""
        return self.run_dir / "supervisor.lock"

    @property
    def state_path(self) -> Path:
        """The processes asked for, their pids and start times."""
        return self.run_dir / "processes.json"

    @property
    def command_line(self) -> list[str]:
        """The command line of the supervisor of this data directory."""
        return [sys.executable, "-P", "-m", "vkgateway.programs.supervisor", "--data-dir", str(self.data_dir)]

    def log_path(self, name: str) -> Path:
        """The log file of the process called `name`."""
        return self.log_dir / f"{name.replace('/', '.')}.log"


def in_group(name: str, prefix: str) -> bool:
    """Whether `name` is `prefix` or lies below it; `tenant/a` holds `tenant/a/etcd` but not `tenant/ab/etcd`.

    The empty prefix holds every name.
    """
    prefix = prefix.rstrip("/")
    return not prefix or name == prefix or name.startswith(prefix + "/")
