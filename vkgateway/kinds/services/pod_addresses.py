"""Addresses of one tenant's pods in one compute cluster, updated pod by pod because there may be thousands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec

from vkgateway.clusters.link import ComputeLink
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import ComputePodView

_NONE: frozenset[str] = frozenset()


class _PodStatus(msgspec.Struct, rename="camel", gc=False):
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[dict[str, str]] = msgspec.field(default_factory=list, name="podIPs")
    host_ip: str = msgspec.field(default="", name="hostIP")
    host_ips: list[dict[str, str]] = msgspec.field(default_factory=list, name="hostIPs")


_status = msgspec.json.Decoder(_PodStatus)


class PodAddresses:
    """Addresses of running compute pods, without host addresses. `update_addresses` refreshes them."""

    def __init__(self, tenant: str, link: ComputeLink) -> None:
        self.link = link
        self._tenant = tenant
        self._by_pod: dict[Key, frozenset[str]] = {}
        self._use_counts: Counter[str] = Counter()
        """Number of pods per address; an ended pod may still be shown when the next pod has its address."""
        self._changed_pods: set[Key] | None = None
        """Pods that changed since the last update; None means any pod."""

    @property
    def current_addresses(self) -> Collection[str]:
        """Addresses as of the last `update_addresses`; the collection changes with the next update."""
        return self._use_counts.keys()

    def pod_changed(self, key: Key) -> None:
        """Mark a compute pod that was added, changed or deleted."""
        if self._changed_pods is not None:
            self._changed_pods.add(key)

    def mark_all_changed(self) -> None:
        """Mark all pods as changed."""
        self._changed_pods = None

    def update_addresses(self) -> set[str]:
        """Update the addresses of changed pods, and return the added and removed addresses."""
        changed, self._changed_pods = self._changed_pods, set()
        if changed is None:
            changed = {*self._by_pod, *self.link.pods.tenant_pod_keys(self._tenant)}
        was_used: dict[str, bool] = {}
        for key in changed:
            self._update_pod(key, was_used)
        return {address for address, used in was_used.items() if used != (address in self._use_counts)}

    def _update_pod(self, key: Key, was_used: dict[str, bool]) -> None:
        """Update the addresses of one pod; record in `were` whether each changed address was in use before."""
        view = self.link.pods.find_pod(self._tenant, key)
        old, new = self._by_pod.pop(key, _NONE), addresses_of(view) if view is not None else _NONE
        if new:
            self._by_pod[key] = new
        for address in old ^ new:
            was_used.setdefault(address, address in self._use_counts)
            self._use_counts[address] += 1 if address in new else -1
            if not self._use_counts[address]:
                del self._use_counts[address]


def addresses_of(view: ComputePodView) -> frozenset[str]:
    """Return the addresses of a compute pod, without those of its node; none after its end."""
    if view.has_ended:
        return _NONE
    status = _status.decode(view.status)
    hosts = {status.host_ip, *(entry.get("ip", "") for entry in status.host_ips)}
    return frozenset({status.pod_ip, *(entry.get("ip", "") for entry in status.pod_ips)} - hosts - {""})
