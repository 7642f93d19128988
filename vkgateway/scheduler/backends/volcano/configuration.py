"""Whether a configuration of Volcano's scheduler suits pools of the gateway. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

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
