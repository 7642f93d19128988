"""Cgroups of commands: one for each tenant with the same cpu weight, so no tenant's commands slow down another's.

The kernel divides cpu time between the tenants that use it, not between their processes. All commands together weigh as
much as one process of the machine. Where cgroups cannot be written, commands run without, with a low priority only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import structlog

from vkgateway_platform.embedded.realnode.cgroups import ROOT

_CLOSE_ATTEMPTS: Final = 20
_CLOSE_PAUSE: Final = 0.05

_log = structlog.get_logger(__name__)


class TenantCgroups:
    """Cgroups of the commands of one hollow kubelet, in the cpu hierarchy at `root`. They exist within the block."""

    def __init__(self, data_dir: Path, *, root: Path = ROOT) -> None:
        name = f"vkgateway-hollow-{hashlib.sha256(str(data_dir).encode()).hexdigest()[:8]}"
        self._is_unified = (root / "cgroup.controllers").exists()
        self._parent = root if self._is_unified else root / "cpu"
        self._group = self._parent / name
        self._commands: Counter[str] = Counter()
        self._is_usable = False

    async def __aenter__(self) -> Self:
        try:
            self._create()
        except OSError as error:
            _log.warning("commands of tenants share cpu time by process", error=str(error))
        else:
            self._is_usable = True
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._is_usable = False
        for _ in range(_CLOSE_ATTEMPTS):  # the last processes may need a moment to end
            self._remove_groups()
            if not self._group.exists():
                return
            await asyncio.sleep(_CLOSE_PAUSE)

    @contextlib.contextmanager
    def hold_group(self, tenant: str) -> Iterator[str]:
        """Yield the file through which a command joins its tenant's cgroup; empty: there is none."""
        group = self._group / f"tenant-{tenant}"
        self._commands[tenant] += 1
        try:
            yield self._join_file(group)
        finally:
            self._commands[tenant] -= 1
            if not self._commands[tenant]:
                del self._commands[tenant]
                with contextlib.suppress(OSError):  # processes that still end keep it for the next command
                    group.rmdir()

    def _join_file(self, group: Path) -> str:
        if not self._is_usable:
            return ""
        try:
            group.mkdir(exist_ok=True)
        except OSError as error:
            _log.warning("a command shares cpu time by process", group=group.name, error=str(error))
            return ""
        return str(group / "cgroup.procs")

    def _create(self) -> None:
        """Create the parent of all groups. Raises OSError."""
        if self._is_unified:
            _enable_cpu(self._parent)
        self._remove_groups()  # a killed hollow kubelet left them
        self._group.mkdir(exist_ok=True)
        if self._is_unified:
            _enable_cpu(self._group)

    def _remove_groups(self) -> None:
        with contextlib.suppress(OSError):
            for group in (*self._group.glob("tenant-*"), self._group):
                group.rmdir()


def _enable_cpu(group: Path) -> None:
    setting = group / "cgroup.subtree_control"
    if "cpu" not in setting.read_text().split():
        setting.write_text("+cpu")
