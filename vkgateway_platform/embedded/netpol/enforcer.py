"""The process that enforces NetworkPolicies: it watches the compute cluster and updates the kernel's rules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import structlog

from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.api.objects import TERMINAL_PHASES, NamespaceView, decode_namespace
from vkgateway.kinds.policies.translation import NetworkPolicyView, decode_policy
from vkgateway.kinds.services.translation import SliceView, decode_slice
from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway_platform.embedded.netpol.cluster_state import ClusterState, Pod, PodView, Server, Site, decode_pod
from vkgateway_platform.embedded.netpol.ruleset import render_ruleset
from vkgateway_platform.embedded.realnode.host import ToolError

log = structlog.get_logger(__name__)

_BATCH_SECONDS: Final = 0.01
"""Seconds in which changes are collected."""
_RETRY_SECONDS: Final = 2.0
"""Seconds after which refused rules are retried."""
_ATTACH_SECONDS: Final = 20.0
"""Seconds for which a new pod waits for its rules; the kubelet retries afterwards."""


class Enforcer:
    """Rules of one node. `load` applies a table of nftables; it raises ToolError."""

    def __init__(self, client: Client, site: Site, *, load: Callable[[str], Awaitable[None]]) -> None:
        self._site = site
        self._load = load
        self._attached: dict[str, str] = {}
        """UID of each pod that started after this process, by address."""
        self._dirty = asyncio.Event()
        self._change = asyncio.Event()
        self._asked = self._done = 0
        self._in_force = ""
        self._pods: Reflector[PodView] = Reflector(
            client,
            resources.PODS,
            decode=decode_pod,
            on_change=self._pod_changed,
            on_complete=self._mark_dirty,
            field_selector=f"spec.nodeName={site.node}",
        )
        self._namespaces: Reflector[NamespaceView] = Reflector(
            client,
            resources.NAMESPACES,
            decode=decode_namespace,
            on_change=lambda _old, _new: self._mark_dirty(),
            on_complete=self._mark_dirty,
        )
        self._policies: Reflector[NetworkPolicyView] = Reflector(
            client,
            resources.NETWORK_POLICIES,
            decode=decode_policy,
            on_change=lambda _old, _new: self._mark_dirty(),
            on_complete=self._mark_dirty,
        )
        self._slices: Reflector[SliceView] = Reflector(
            client,
            resources.ENDPOINT_SLICES,
            decode=decode_slice,
            on_change=lambda _old, _new: self._mark_dirty(),
            on_complete=self._mark_dirty,
            namespace=SYSTEM_NAMESPACE,
            label_selector=TENANT_LABEL,
        )

    async def run(self) -> None:
        """Watch the compute cluster and update the rules until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run(), name="watch-pods")
            group.create_task(self._namespaces.run(), name="watch-namespaces")
            group.create_task(self._policies.run(), name="watch-policies")
            group.create_task(self._slices.run(), name="watch-slices")
            group.create_task(self._update_loop(), name="keep-rules")

    async def attach(self, uid: str, addresses: Collection[str]) -> None:
        """Apply a new pod's rules before its containers start.

        Raises:
            UnavailableError: the pod is not known yet, or the kernel refuses the rules now.
        """
        try:
            async with asyncio.timeout(_ATTACH_SECONDS):
                await self._wait_until(lambda: any(pod.metadata.uid == uid for pod in self._pods.store.values()))
                self._attached.update(dict.fromkeys(addresses, uid))
                self._asked += 1
                asked = self._asked
                self._mark_dirty()
                await self._wait_until(lambda: self._done >= asked)
        except TimeoutError as error:
            raise UnavailableError(
                f"the rules for pod {uid} are not in force after {_ATTACH_SECONDS:.0f} s", hint="it is tried again"
            ) from error

    def detach(self, uid: str, addresses: Collection[str]) -> None:
        """Forget addresses of a pod whose network is removed; another pod may already have them."""
        detached = [address for address in addresses if self._attached.get(address) == uid]
        for address in detached:
            del self._attached[address]
        if detached:
            self._mark_dirty()

    def build_state(self) -> ClusterState:
        """Return the state of the compute cluster that determines the rules."""
        return ClusterState(
            pods=sorted(self._pods_by_address().values(), key=lambda pod: pod.address),
            namespaces={name: view.metadata.labels for (_, name), view in self._namespaces.store.items()},
            policies=list(self._policies.store.values()),
            servers=self._servers_by_tenant(),
        )

    @property
    def _is_synced(self) -> bool:
        followed = (self._pods, self._namespaces, self._policies, self._slices)
        return all(watch.is_complete for watch in followed)

    def _pods_by_address(self) -> dict[str, Pod]:
        """Return the pods by address; if two pods have the same, the one with the newest network."""
        found: dict[str, Pod] = {}
        by_uid = {view.metadata.uid: view for view in self._pods.store.values() if not view.spec.host_network}
        for view in sorted(by_uid.values(), key=lambda view: view.metadata.creation_timestamp or ""):
            address = view.status.pod_ip
            is_running = view.status.phase not in TERMINAL_PHASES
            if address and is_running and view.metadata.uid not in self._attached.values():
                found[address] = _to_pod(view, address)
        for address, uid in self._attached.items():
            if uid in by_uid:
                found[address] = _to_pod(by_uid[uid], address)
        return found

    def _servers_by_tenant(self) -> dict[str, list[Server]]:
        found: dict[str, list[Server]] = {}
        for view in self._slices.store.values():
            addresses = [address for endpoint in view.endpoints or () for address in endpoint.get("addresses") or ()]
            servers = [
                Server(address, port["port"], port.get("protocol") or "TCP")
                for address in addresses
                for port in view.ports or ()
            ]
            found.setdefault(view.metadata.labels[TENANT_LABEL], []).extend(servers)
        return found

    def _pod_changed(self, old: PodView | None, new: PodView | None) -> None:
        if new is None and old is not None:
            uid = old.metadata.uid
            self.detach(uid, [address for address, owner in self._attached.items() if owner == uid])
        self._mark_dirty()

    def _mark_dirty(self) -> None:
        self._dirty.set()
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def _wait_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._change.wait()

    async def _update_loop(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(_BATCH_SECONDS)
            self._dirty.clear()
            if self._is_synced:
                await self._update_rules()

    async def _update_rules(self) -> None:
        asked, text = self._asked, render_ruleset(self.build_state(), self._site)
        if text != self._in_force:
            try:
                await self._load(text)
            except ToolError as error:
                log.warning("the kernel does not take the rules; they are tried again", error=str(error))
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._dirty.set)
                return
            self._in_force = text
        self._done = asked
        self._notify_waiters()


def _to_pod(view: PodView, address: str) -> Pod:
    metadata = view.metadata
    return Pod(address=address, namespace=metadata.namespace, labels=metadata.labels, ports=view.spec.container_ports)
