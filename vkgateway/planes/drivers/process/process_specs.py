"""Components of a control plane as processes under the supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vkgateway.planes.components import PROGRAMS, component_arguments, component_environment
from vkgateway.planes.plane import ComponentName, ControlPlaneSpec, Tuning
from vkgateway.planes.plane_files import PlaneFiles
from vkgateway.planes.supervisor.spec import ProcessSpec

# Clients of the API server stop before it, and everything stops before etcd.
_STOP_RANKS: Mapping[ComponentName, int] = {"apiserver": 40, "controller-manager": 60, "scheduler": 60}
# Seconds between SIGTERM and SIGKILL. All state is in etcd, and clients retry a lost request.
_STOP_TIMEOUTS: Mapping[ComponentName, float] = {"apiserver": 3.0, "controller-manager": 2.0, "scheduler": 2.0}
_TIMER_SLACK: Mapping[ComponentName, float] = {"apiserver": 0.0, "controller-manager": 0.02, "scheduler": 0.0}
"""Seconds. The idle controller-manager fires a hundred timers a second. With this slack most of them fire together,
which halves its idle CPU time. The other two answer requests, and Go's garbage collector relies on such timers to stop
cores one by one, so their timers stay exact."""


def component_process(
    name: ComponentName,
    *,
    group: str,
    plane: ControlPlaneSpec,
    files: PlaneFiles,
    programs: Mapping[str, Path],
    cwd: Path | None = None,
) -> ProcessSpec:
    """Return the spec of a component's process, named `group/name`; its files must exist.

    `programs` maps names such as `kube-apiserver` to paths. `cwd` is where relative paths begin.
    """
    slack = plane.tuning.get(name, Tuning()).timer_slack
    return ProcessSpec(
        name=f"{group}/{name}",
        argv=(str(programs[PROGRAMS[name]]), *component_arguments(name, plane=plane, files=files)),
        env=component_environment(name, plane=plane, files=files),
        cwd=None if cwd is None else str(cwd),
        stop_rank=_STOP_RANKS[name],
        stop_timeout=_STOP_TIMEOUTS[name],
        timer_slack=_TIMER_SLACK[name] if slack is None else slack,
        batch=True,
    )
