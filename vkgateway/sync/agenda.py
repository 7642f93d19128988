"""What of one tenant is to be looked at: its items in the workers' queue, and how soon each."""

from __future__ import annotations

from typing import Final

from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.copies import Reference
from vkgateway.sync.engine import Item, Queue

SWEEP_AGAIN: Final = "periodic"
"""Kind of the sweeps that come now and then, but not at each start."""
_SWEEP_EVERY: Final = 600.0
_LINGER: Final = 30.0
"""Seconds for which a copy stays after its last pod: Jobs come one after another with the same references."""
_GATHER: Final = 0.02
"""Seconds in which changes of one Service and its slices, or of one volume, are gathered."""
_CLASSES_GATHER: Final = 0.5
"""The same of classes: nodes and classes come one by one at the start."""


class Agenda:
    """One tenant's; each call only marks work to be done, in so many `seconds` at the latest."""

    def __init__(self, tenant: str, queue: Queue) -> None:
        self._tenant = tenant
        self._queue = queue

    def pod(self, key: Key, seconds: float = 0.0) -> None:
        """Look at a pod."""
        self._add(("pod", "", *key), seconds)

    def gate(self, key: Key, seconds: float = 0.0) -> None:
        """Look at a pod that waits for admission."""
        self._add(("gate", "", *key), seconds)

    def copy(self, reference: Reference) -> None:
        """Bring the copies of an object into line."""
        self._add(("copy", *reference), 0.0)

    def unused_copy(self, reference: Reference) -> None:
        """Look, in a while, at a copy that may go."""
        self._add(("copy", *reference), _LINGER)

    def namespace(self, namespace: str) -> None:
        """Look at what stands below for a namespace of the tenant."""
        self._add(("namespace", "", namespace, ""), 0.0)

    def service(self, key: Key) -> None:
        """Look at a Service."""
        self._add(("service", "", *key), _GATHER)

    def addresses(self) -> None:
        """Look at the addresses of pods that the tenant's own slices name."""
        self._add(("addresses", "", "", ""), _GATHER)

    def policies(self, namespace: str) -> None:
        """Look at the network policies of a namespace."""
        self._add(("policies", "", namespace, ""), _GATHER)

    def budget(self, key: Key) -> None:
        """Look at a PodDisruptionBudget."""
        self._add(("budget", "", *key), _GATHER)

    def names(self) -> None:
        """Look at who answers for the tenant's names."""
        self._add(("names", "", "", ""), _GATHER)

    def event(self, cluster: str, key: Key, seconds: float = 0.0) -> None:
        """Look at an event of a compute cluster; `key` is its own."""
        self._add(("event", cluster, *key), seconds)

    def volume(self, uid: str, seconds: float = _GATHER) -> None:
        """Look at the volume of the claim with this UID."""
        self._add(("volume", "", "", uid), seconds)

    def classes(self) -> None:
        """Look at the storage classes."""
        self._add(("classes", "", "", ""), _CLASSES_GATHER)

    def sweep(self) -> None:
        """Find what is left over below."""
        self._add(("sweep", "", "", ""), 0.0)

    def next_sweep(self) -> None:
        """Do so again in a while, thoroughly."""
        self._add(("sweep", SWEEP_AGAIN, "", ""), _SWEEP_EVERY)

    def _add(self, item: Item, seconds: float) -> None:
        self._queue.add(self._tenant, item, delay=seconds)
