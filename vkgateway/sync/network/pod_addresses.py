"""Addresses of one tenant's pods in one compute cluster, looked at pod by pod: there may be thousands of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec

from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import ComputePodView

_NONE: frozenset[str] = frozenset()


class _PodStatus(msgspec.Struct, rename="camel", gc=False):
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[dict[str, str]] = msgspec.field(default_factory=list, name="podIPs")
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: list[dict[str, str]] = msgspec.field(default_factory=list, name="hostIPs")


_status = msgspec.json.Decoder(_PodStatus)


class PodAddresses:
    """Those of the pods that run, as the compute cluster tells them; never a node's. See `update_addresses`."""

    def __init__(self, tenant: str, link: ComputeLink) -> None:
        self.link = link
        self._tenant = tenant
        self._by_pod: dict[Key, frozenset[str]] = {}
        self._use_counts: Counter[str] = Counter()
        """How many pods have an address; one that has ended may be shown beside the next that got it."""
        self._changed_pods: set[Key] | None = None
        """Pods that changed since they were looked at; None: any may have."""

    @property
    def current_addresses(self) -> Collection[str]:
        """The addresses as of the last `update_addresses`; what is returned changes with the next one."""
        return self._use_counts.keys()

    def pod_changed(self, key: Key) -> None:
        """What stands for a pod of the tenant came, changed or went."""
        if self._changed_pods is not None:
            self._changed_pods.add(key)

    def mark_all_changed(self) -> None:
        """Any may have changed."""
        self._changed_pods = None

    def update_addresses(self) -> set[str]:
        """Look at the pods that changed; returns the addresses that came or went by that."""
        changed, self._changed_pods = self._changed_pods, set()
        if changed is None:
            changed = {*self._by_pod, *self.link.pods.tenant_pod_keys(self._tenant)}
        were: dict[str, bool] = {}
        for key in changed:
            self._update_pod(key, were)
        return {address for address, was in were.items() if was != (address in self._use_counts)}

    def _update_pod(self, key: Key, were: dict[str, bool]) -> None:
        """Look at one pod; `were` learns which of the addresses that it got or lost anybody had before."""
        view = self.link.pods.find_pod(self._tenant, key)
        old, new = self._by_pod.pop(key, _NONE), _addresses_of(view) if view is not None else _NONE
        if new:
            self._by_pod[key] = new
        for address in old ^ new:
            were.setdefault(address, address in self._use_counts)
            self._use_counts[address] += 1 if address in new else -1
            if not self._use_counts[address]:
                del self._use_counts[address]


def _addresses_of(view: ComputePodView) -> frozenset[str]:
    if view.has_ended:
        return _NONE
    status = _status.decode(view.status)
    hosts = {status.host_ip, *(entry.get("ip", "") for entry in status.host_ips)}
    return frozenset({status.pod_ip, *(entry.get("ip", "") for entry in status.pod_ips)} - hosts - {""})
