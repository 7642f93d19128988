"""Steps of the real node: prepared while the API server starts, then started and watched."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from vkgateway.api import times
from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import FIELD_MANAGER
from vkgateway.api.objects import NodeView, find_condition
from vkgateway.kube import errors
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.kube.resources import NODES
from vkgateway.planes.pki import Authority
from vkgateway.planes.supervisor.client import StartWait, SupervisorClient
from vkgateway.planes.supervisor.spec import ProcessState
from vkgateway_platform.embedded import compute
from vkgateway_platform.embedded.hollow.nodes import POOL_LABEL
from vkgateway_platform.embedded.options import RealNodeChoice
from vkgateway_platform.embedded.realnode.certificates import write_certificates
from vkgateway_platform.embedded.realnode.containerd import Containerd
from vkgateway_platform.embedded.realnode.host import ToolError
from vkgateway_platform.embedded.realnode.manifests import cluster_objects, node_status_patch
from vkgateway_platform.embedded.realnode.node import RealNode
from vkgateway_platform.embedded.realnode.options import PROGRAMS, RealNodeOptions
from vkgateway_platform.embedded.realnode.probe import find_obstacle
from vkgateway_platform.embedded.realnode.processes import GROUP
from vkgateway_platform.embedded.record import PlatformRecord
from vkgateway_platform.embedded.steps import Step

POOL = "real"
_POLL = 0.2
_READY_SECONDS = 90.0


def why_no_real_node(choice: RealNodeChoice) -> str | None:
    """Return why the platform has no real node, None if it has one.

    Raises:
        UnavailableError: the user requires one (`yes`), but the machine cannot run it.
    """
    if choice == "no":
        return "not wanted (--real-node no)"
    why_not = find_obstacle()
    if why_not and choice == "yes":
        raise UnavailableError(
            f"this machine cannot run a real node: {why_not}",
            hint="Fix this, or run `vkgateway up --real-node auto`, which runs without it.",
        )
    return why_not


class RealNodeSteps:
    """Steps of `up` for the real node."""

    def __init__(self, directory: Path, *, record: PlatformRecord, supervisor: SupervisorClient) -> None:
        self._directory = directory
        self._record = record
        self._supervisor = supervisor
        self._node: RealNode

    def build_steps(self, *, programs: Mapping[str, Path], api: Client, authority: Authority) -> list[Step]:
        """Return the steps; they depend on a step named `apiserver`."""
        options = RealNodeOptions(
            directory=self._directory,
            number=self._record.number,
            programs={name: programs[name] for name in PROGRAMS},
            api_server=compute.plane_spec(self._record).server_url,
            labels={POOL_LABEL: POOL},
            open_ports=(self._record.ports["gateway-kubelet"],),
        )
        self._node = RealNode(options, authority=authority)
        return [
            Step(name="real-node-files", title="real node's files and namespaces", run=self._prepare_node),
            Step(
                name="real-node",
                title="real node",
                needs=("real-node-files", "apiserver"),
                run=lambda: self._start_node(api),
            ),
        ]

    async def _prepare_node(self) -> None:
        with _opt_out_hint():
            await asyncio.to_thread(self._node.prepare)

    async def _start_node(self, api: Client) -> str:
        states = [await self._supervisor.ensure_process(spec) for spec in self._node.process_specs()]
        kubelet = next(state for state in states if state.name == f"{GROUP}/kubelet")
        with _opt_out_hint():
            await asyncio.gather(
                asyncio.to_thread(self._node.import_images),
                apply_objects(api, cluster_objects(self._node.options), field_manager=FIELD_MANAGER),
            )
        await self._wait_ready(api, kubelet)
        await api.patch(NODES, self._node_name, node_status_patch(self._node.options), subresource="status")
        return f"{self._node_name} in pool {POOL}"

    @property
    def _node_name(self) -> str:
        return self._node.options.name

    async def _wait_ready(self, api: Client, kubelet: ProcessState) -> None:
        began = time.monotonic()
        limit = StartWait(_READY_SECONDS, now=began)
        while (why := await self._not_ready(api, since=kubelet.since)) is not None:
            now = time.monotonic()
            if limit.is_over(kubelet.pid, now):
                raise UnavailableError(
                    f"the real node is not ready after {now - began:.0f} s: {why}",
                    hint="`vkgateway logs node/kubelet` shows more; `vkgateway up --real-node no` runs without it.",
                )
            await asyncio.sleep(_POLL)

    async def _not_ready(self, api: Client, *, since: float) -> str | None:
        try:
            node = msgspec.json.decode(await api.get(NODES, self._node_name), type=NodeView)
        except errors.NotFound:
            return "the kubelet has not registered it"
        ready = find_condition(node.status.conditions, "Ready")
        # Earlier status is from the previous kubelet.
        if (
            ready is None
            or ready.last_heartbeat_time is None
            or times.parse_time(ready.last_heartbeat_time).timestamp() < int(since)
        ):
            return "the kubelet has not reported yet"
        return None if ready.status == "True" else ready.message or "no reason reported"


@contextlib.contextmanager
def _opt_out_hint() -> Iterator[None]:
    """Convert errors of the machine within the block to an UnavailableError with the way out."""
    try:
        yield
    except ToolError as error:
        raise UnavailableError(
            f"the real node cannot be created: {error}", hint="`vkgateway up --real-node no` runs without it."
        ) from error


async def remove_node(directory: Path, *, record: PlatformRecord, supervisor: SupervisorClient, api: Client) -> None:
    """Remove the real node of a platform that should not have one any more."""
    await supervisor.remove_group(GROUP)
    node = _bare_node(directory, number=record.number)
    await asyncio.to_thread(node.teardown)
    with contextlib.suppress(errors.NotFound):
        await api.delete(NODES, node.options.name)


def renew_node(directory: Path, *, number: int, api_server: str, authority: Authority) -> None:
    """Renew the certificates of an existing node; its processes read them again by themselves."""
    if directory.exists():
        write_certificates(_bare_options(directory, number=number, api_server=api_server), authority=authority)


def teardown_node(directory: Path, *, number: int) -> None:
    """Remove the real node from the machine, except for its files; its processes have ended."""
    if directory.exists():
        _bare_node(directory, number=number).teardown()


def is_running(directory: Path, *, number: int) -> bool:
    """Return whether the node's containerd can be reached."""
    return _bare_node(directory, number=number).has_namespaces


def running_containerd(directory: Path, *, number: int, ctr: Path) -> Containerd:
    """Return the containerd of a running node; `ctr` is its client."""
    return _bare_node(directory, number=number, ctr=ctr).containerd


def _bare_node(directory: Path, *, number: int, ctr: Path | None = None) -> RealNode:
    """Return a node that is sufficient for removal: without keys and with `ctr` as its only program."""
    return RealNode(_bare_options(directory, number=number, ctr=ctr), authority=Authority.create("none"))


def _bare_options(directory: Path, *, number: int, ctr: Path | None = None, api_server: str = "") -> RealNodeOptions:
    programs = dict.fromkeys(PROGRAMS, directory / "none") | ({"ctr": ctr} if ctr else {})
    return RealNodeOptions(directory=directory, number=number, programs=programs, api_server=api_server)
