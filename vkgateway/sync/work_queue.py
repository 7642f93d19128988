"""What of one tenant is to be looked at: its items in the workers' queue, and how soon each."""

from __future__ import annotations

from typing import Final

from vkgateway.sync.views.ownership import Key, Reference
from vkgateway.sync.workers import ReconcileRequest, RequestQueue

SWEEP_AGAIN: Final = "periodic"
"""Kind of the sweeps that come now and then, but not at each start."""
_SWEEP_EVERY: Final = 600.0
_LINGER: Final = 30.0
"""Seconds for which a copy stays after its last pod: Jobs come one after another with the same references."""
_BATCH_SECONDS: Final = 0.02
"""Seconds in which changes of one Service and its slices, or of one volume, are gathered."""
_CLASSES_BATCH_SECONDS: Final = 0.5
"""The same of classes: nodes and classes come one by one at the start."""


class WorkQueue:
    """One tenant's; each call only marks work to be done, in so many `seconds` at the latest."""

    def __init__(self, tenant: str, queue: RequestQueue) -> None:
        self._tenant = tenant
        self._queue = queue

    def enqueue_pod(self, key: Key, seconds: float = 0.0) -> None:
        """Look at a pod."""
        self._enqueue_request(("pod", "", *key), seconds)

    def enqueue_gate(self, key: Key, seconds: float = 0.0) -> None:
        """Look at a pod that waits for admission."""
        self._enqueue_request(("gate", "", *key), seconds)

    def enqueue_copy(self, reference: Reference) -> None:
        """Bring the copies of an object into line."""
        self._enqueue_request(("copy", *reference), 0.0)

    def enqueue_unused_copy(self, reference: Reference) -> None:
        """Look, in a while, at a copy that may go."""
        self._enqueue_request(("copy", *reference), _LINGER)

    def enqueue_namespace(self, namespace: str) -> None:
        """Look at what stands below for a namespace of the tenant."""
        self._enqueue_request(("namespace", "", namespace, ""), 0.0)

    def enqueue_service(self, key: Key) -> None:
        """Look at a Service."""
        self._enqueue_request(("service", "", *key), _BATCH_SECONDS)

    def enqueue_addresses(self) -> None:
        """Look at the addresses of pods that the tenant's own slices name."""
        self._enqueue_request(("addresses", "", "", ""), _BATCH_SECONDS)

    def enqueue_policies(self, namespace: str) -> None:
        """Look at the network policies of a namespace."""
        self._enqueue_request(("policies", "", namespace, ""), _BATCH_SECONDS)

    def enqueue_budget(self, key: Key) -> None:
        """Look at a PodDisruptionBudget."""
        self._enqueue_request(("budget", "", *key), _BATCH_SECONDS)

    def enqueue_names(self) -> None:
        """Look at who answers for the tenant's names."""
        self._enqueue_request(("names", "", "", ""), _BATCH_SECONDS)

    def enqueue_event(self, cluster: str, key: Key, seconds: float = 0.0) -> None:
        """Look at an event of a compute cluster; `key` is its own."""
        self._enqueue_request(("event", cluster, *key), seconds)

    def enqueue_volume(self, uid: str, seconds: float = _BATCH_SECONDS) -> None:
        """Look at the volume of the claim with this UID."""
        self._enqueue_request(("volume", "", "", uid), seconds)

    def enqueue_classes(self) -> None:
        """Look at the storage classes."""
        self._enqueue_request(("classes", "", "", ""), _CLASSES_BATCH_SECONDS)

    def enqueue_sweep(self) -> None:
        """Find what is left over below."""
        self._enqueue_request(("sweep", "", "", ""), 0.0)

    def schedule_sweep(self) -> None:
        """Do so again in a while, thoroughly."""
        self._enqueue_request(("sweep", SWEEP_AGAIN, "", ""), _SWEEP_EVERY)

    def _enqueue_request(self, item: ReconcileRequest, seconds: float) -> None:
        self._queue.add(self._tenant, item, delay=seconds)
