"""The cgroup of all pods of the node: created before the kubelet starts, emptied and removed after it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

ROOT = Path("/sys/fs/cgroup")
_NEEDED = ("cpu", "memory", "pids", "cpuset")
# Controllers that the kubelet requires in a version 2 hierarchy, if the kernel has them.
_WANTED = (*_NEEDED, "hugetlb", "io")


@dataclass(frozen=True, slots=True)
class Cgroups:
    """A cgroup of the same name in every hierarchy (version 1), or the single one (version 2)."""

    name: str
    root: Path = ROOT

    @property
    def is_unified(self) -> bool:
        """Whether the machine has version 2 only."""
        return (self.root / "cgroup.controllers").exists()

    def find_obstacle(self) -> str | None:
        """Return why pods cannot have cgroups here, or None."""
        if self.is_unified:
            available = (self.root / "cgroup.controllers").read_text().split()
        else:
            available = [part for path in self._hierarchy_paths() for part in path.name.split(",")]
        lacking = [name for name in _NEEDED if name not in available]
        if lacking:
            return f"the cgroup controllers {', '.join(lacking)} are not mounted at {self.root}"
        if closed := [path for path in self._parent_paths() if not os.access(path, os.W_OK)]:
            return f"control groups at {closed[0]} may not be written (a container: it needs more rights)"
        if self.is_unified and not self._is_delegable():
            return (
                f"{self.root} holds processes itself, so its controllers cannot be handed on "
                "(a container: start it with its own init in a sub-group)"
            )
        return None

    def create(self, *, memory: int) -> None:
        """Create the cgroup with a limit of `memory` bytes for all its members; repeatable.

        Pods may use memory without a limit, in volumes too, but not that of the platform.
        """
        if self.is_unified:
            self._enable_controllers(self.root)
            (self.root / self.name).mkdir(exist_ok=True)
            self._enable_controllers(self.root / self.name)
            _limit_memory(self.root / self.name / "memory.max", memory)
            return
        for hierarchy in self._hierarchy_paths():
            group = hierarchy / self.name
            group.mkdir(exist_ok=True)
            for setting in ("cpuset.mems", "cpuset.cpus"):  # a new cpuset is empty, and no process may join it
                if (hierarchy / setting).exists():
                    (group / setting).write_text((hierarchy / setting).read_text())
            if "memory" in hierarchy.name.split(","):
                _limit_memory(group / "memory.limit_in_bytes", memory)

    def list_members(self) -> set[int]:
        """Return the processes in the cgroup and its descendants."""
        pids: set[int] = set()
        for group in self._group_paths():
            for folder, _, _ in os.walk(group):  # tolerates cgroups that disappear
                with contextlib.suppress(OSError):
                    pids.update(int(pid) for pid in Path(folder, "cgroup.procs").read_text().split())
        return pids

    def remove(self) -> None:
        """Remove the cgroup and its descendants, which must not have processes; repeatable."""
        for group in self._group_paths():
            for folder, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(FileNotFoundError):
                    Path(folder).rmdir()

    def _group_paths(self) -> list[Path]:
        return [parent / self.name for parent in self._parent_paths() if (parent / self.name).is_dir()]

    def _parent_paths(self) -> list[Path]:
        """Return where the cgroup is created."""
        return [self.root] if self.is_unified else self._hierarchy_paths()

    def _hierarchy_paths(self) -> list[Path]:
        """Version 1: return each mounted hierarchy once (`cpu` may be a link to `cpu,cpuacct`), also next to a unified
        one.
        """
        if not self.root.is_dir():
            return []
        return [
            path
            for path in sorted(self.root.iterdir())
            if path.is_dir() and not path.is_symlink() and (path / "cgroup.procs").exists()
        ]

    def _enable_controllers(self, group: Path) -> None:
        """Version 2: enable the controllers of `group` for its children."""
        available = (group / "cgroup.controllers").read_text().split()
        enabled = (group / "cgroup.subtree_control").read_text().split()
        for controller in (name for name in _WANTED if name in available and name not in enabled):
            (group / "cgroup.subtree_control").write_text(f"+{controller}")

    def _is_delegable(self) -> bool:
        """Version 2: only the real root cgroup may delegate controllers while it has processes."""
        enabled = (self.root / "cgroup.subtree_control").read_text().split()
        if all(name in enabled for name in _NEEDED):
            return True
        real_root = not (self.root / "cgroup.type").exists()
        return real_root or not (self.root / "cgroup.procs").read_text().split()


def _limit_memory(setting: Path, memory: int) -> None:
    try:
        setting.write_text(str(memory))
    except OSError as error:  # members that use more already are left alone
        log.warning("the memory of pods on the real node is not limited", setting=str(setting), error=error.strerror)
