"""Check of Volcano in a compute cluster: its API, its controllers, the queues, and its scheduler's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import yaml

from vkgateway.api.names import GATEWAY_LABEL, POOL_LABEL
from vkgateway.api.objects import Meta
from vkgateway.api.types import Pool
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict
from vkgateway.kube import errors
from vkgateway.kube.resources import CONFIG_MAPS
from vkgateway.scheduler.backends.check import (
    TenantsIn,
    find_unanswered,
    missing_queues,
    missing_verdict,
    unanswered_verdict,
)
from vkgateway.scheduler.backends.names import MODE_LABEL
from vkgateway.scheduler.backends.volcano.kinds import QUEUES, VOLCANO_KINDS
from vkgateway.scheduler.backends.volcano.names import API_VERSION

NAMESPACE: Final = "volcano-system"
"""Namespace in which Volcano's manifests and chart install it."""
CONFIGURATION_KEY: Final = "volcano-scheduler.conf"
_SHIPPED: Final = "deploy/volcano/scheduler-configmap.yaml"


class _QueueStatus(msgspec.Struct):
    state: str = ""


class _QueueView(msgspec.Struct):
    metadata: Meta
    status: _QueueStatus = msgspec.field(default_factory=_QueueStatus)


class _QueueList(msgspec.Struct):
    items: tuple[_QueueView, ...] = ()


class _ConfigMapView(msgspec.Struct):
    data: Mapping[str, str] = {}


class _ConfigMapList(msgspec.Struct):
    items: tuple[_ConfigMapView, ...] = ()


_decode_queues: Final = msgspec.json.Decoder(_QueueList).decode
_decode_config_maps: Final = msgspec.json.Decoder(_ConfigMapList).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class VolcanoState:
    """State of Volcano in a compute cluster."""

    is_served: bool
    queues: Mapping[str, str] = field(default_factory=dict)
    """State of each queue of the cluster by name: `Open`, or empty if no controller answered."""
    own_pools: Mapping[str, str] = field(default_factory=dict)
    """Pool of each queue that this gateway created, by name."""
    unanswered: str = ""
    """A PodGroup that Volcano's scheduler has not handled."""
    configuration: str | None = None
    """Text of the scheduler's configuration; None: not found."""

    def verdict(self, pools: Sequence[Pool], tenants: TenantsIn) -> Verdict:
        """See `SchedulerState`."""
        if not self.is_served:
            return missing_verdict("Volcano", API_VERSION, pools)
        if missing := sorted(missing_queues(pools, frozenset(self.queues), tenants)):
            return false_verdict(
                "QueuesMissing", f"Queues do not exist: {', '.join(missing)}; create them, or set manageQueues to true"
            )
        if problems := list(self._queue_problems({pool.name for pool in pools})):
            return false_verdict("QueuesInactive", "; ".join(problems))
        if self.unanswered:
            return unanswered_verdict("Volcano", "PodGroup", self.unanswered)
        return self._configuration_verdict(", ".join(pool.name for pool in pools))

    def _configuration_verdict(self, names: str) -> Verdict:
        """Return the verdict on the scheduler's configuration for pools."""
        if self.configuration is None:
            hint = f"no ConfigMap in {NAMESPACE} has {CONFIGURATION_KEY}, so the configuration is not checked"
            return true_verdict("SchedulersReady", f"Volcano schedules {names}; {hint}")
        if faults := list(configuration_problems(self.configuration)):
            text = f"the configuration of Volcano's scheduler does not suit pools {names}: {'; '.join(faults)}"
            return false_verdict("ConfigurationUnsuitable", f"{text}; use {_SHIPPED} of vkgateway")
        return true_verdict("SchedulersReady", f"Volcano schedules {names}")

    def _queue_problems(self, pools: set[str]) -> Iterator[str]:
        for name, pool in self.own_pools.items():
            state = self.queues.get(name, "")
            if pool in pools and state != "Open":
                yield f"Queue {name} is {state}" if state else f"Queue {name} has no state: Volcano does not answer"


async def read_volcano(link: ComputeLink) -> VolcanoState:
    """Return the state of Volcano in a compute cluster. Raises ApiError if the cluster does not answer."""
    client = link.client
    try:
        queues = _decode_queues(await client.request("GET", QUEUES.path())).items
    except errors.NotFound:
        return VolcanoState(is_served=False)
    found = _decode_config_maps(await client.request("GET", CONFIG_MAPS.path(NAMESPACE))).items
    return VolcanoState(
        is_served=True,
        queues={queue.metadata.name: queue.status.state for queue in queues},
        own_pools=dict(_own_pools(queues, link.gateway.value)),
        unanswered=await find_unanswered(link, VOLCANO_KINDS),
        configuration=next((each.data[CONFIGURATION_KEY] for each in found if CONFIGURATION_KEY in each.data), None),
    )


def _own_pools(queues: Iterable[_QueueView], gateway: str) -> Iterator[tuple[str, str]]:
    for queue in queues:
        labels = queue.metadata.labels
        if MODE_LABEL in labels and labels.get(GATEWAY_LABEL) == gateway:
            yield queue.metadata.name, labels.get(POOL_LABEL, "")


_ACTIONS: Final = {
    "enqueue": "no PodGroup gets its turn",
    "allocate": "no pod is bound",
    "reclaim": "guarantees are never reclaimed from borrowers",
}
"""Required actions, and what happens without them."""
_FINDS_VICTIMS: Final = frozenset({"conformance", "drf", "gang", "pdb", "proportion", "tdm"})
"""Plugins other than capacity that find victims of reclaim."""


def configuration_problems(text: str) -> Iterator[str]:
    """Yield what is wrong with the text of `volcano-scheduler.conf`, each with its consequence."""
    try:
        document = yaml.safe_load(text)
        actions = {action.strip() for action in document["actions"].split(",")}
        tiers = [{plugin["name"]: plugin for plugin in tier.get("plugins") or ()} for tier in document["tiers"]]
    except (yaml.YAMLError, AttributeError, KeyError, TypeError):
        yield "it cannot be read"
        return
    for action, consequence in _ACTIONS.items():
        if action not in actions:
            yield f"without the action {action}, {consequence}"
    yield from _plugin_problems(tiers)


def _plugin_problems(tiers: Sequence[Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    plugins = {name: plugin for tier in tiers for name, plugin in tier.items()}
    if "capacity" not in plugins:
        yield "without the plugin capacity, queues have no guarantees (deserved)"
    if "gang" not in plugins:
        yield "without the plugin gang, incomplete gangs start"
    elif _finds_victims(plugins["gang"]):
        yield "gang must set enableReclaimable to false, or gangs without surplus are never reclaimed"
    if _is_true(plugins.get("gang", {}).get("enablePreemptable", True)):
        yield "gang must set enablePreemptable to false, or gangs without surplus are never preempted"
    if "overcommit" in plugins:
        yield "with the plugin overcommit, PodGroups whose room must be reclaimed wait forever"
    first = next((tier for tier in tiers if any(map(_is_finder, tier.values()))), {})
    if "capacity" in plugins and "capacity" not in first:
        others = ", ".join(sorted(name for name, plugin in first.items() if _is_finder(plugin)))
        yield f"capacity must be in the tier of {others}, which otherwise decides alone, and evicts guaranteed pods"


def _is_finder(plugin: Mapping[str, Any]) -> bool:
    return plugin["name"] == "capacity" or (plugin["name"] in _FINDS_VICTIMS and _finds_victims(plugin))


def _finds_victims(plugin: Mapping[str, Any]) -> bool:
    return _is_true(plugin.get("enableReclaimable", True))


def _is_true(value: object) -> bool:
    return value is not False and str(value).lower() != "false"
