"""Kernel limits that many control planes on one machine reach; raised if they are too low."""

from __future__ import annotations

import os
from pathlib import Path

from vkgateway_platform.embedded.steps import Report

INOTIFY_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
ENOUGH_INSTANCES = 8192
"""Each API server uses about six inotify instances for its certificates; containerd and kubelet use more. The kernel's
default of 128 suffices for a handful of tenants; then programs fail with "too many open files".
"""


def ensure_inotify(report: Report, *, setting: Path = INOTIFY_INSTANCES, root: bool | None = None) -> None:
    """Raise the limit of inotify instances per user, or report how root can do it.

    The limit stays raised after `down`: it costs nothing, and other programs may rely on it by then.
    """
    try:
        current = int(setting.read_text())
    except (OSError, ValueError):
        return
    if current >= ENOUGH_INSTANCES:
        return
    if not (os.geteuid() == 0 if root is None else root):
        report.done(
            f"fs.inotify.max_user_instances is {current}, which a few tenants use up; "
            f"as root: sysctl fs.inotify.max_user_instances={ENOUGH_INSTANCES}"
        )
        return
    try:
        setting.write_text(str(ENOUGH_INSTANCES))
    except OSError as error:
        report.done(f"fs.inotify.max_user_instances stays {current}: {error.strerror}")
        return
    report.done(f"fs.inotify.max_user_instances: {current} raised to {ENOUGH_INSTANCES}")
