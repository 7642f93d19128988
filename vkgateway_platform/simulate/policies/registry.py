"""Schedulers by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping

from vkgateway.api.errors import InputError
from vkgateway_platform.simulate.policies.arbiter import ArbiterScheduler
from vkgateway_platform.simulate.policies.fifo import PriorityFifo
from vkgateway_platform.simulate.policies.kueue import Kueue
from vkgateway_platform.simulate.policies.private import PrivateClusters
from vkgateway_platform.simulate.policies.scheduler import Scheduler

SCHEDULERS: Mapping[str, Callable[[], Scheduler]] = {
    "vkgateway": ArbiterScheduler,
    "fifo": PriorityFifo,
    "kueue": Kueue,
    "private": PrivateClusters,
}
ALL_SCHEDULERS = "all"


def load_schedulers(names: Iterable[str]) -> list[Scheduler]:
    """Return the schedulers of these names, each once.

    `module:Class` names a custom one.

    Raises:
        InputError: a name is unknown.
    """
    chosen: dict[str, Scheduler] = {}
    for name in names:
        for each in SCHEDULERS if name == ALL_SCHEDULERS else (name,):
            chosen.setdefault(each, _load_scheduler(each))
    return list(chosen.values())


def _load_scheduler(name: str) -> Scheduler:
    if name in SCHEDULERS:
        return SCHEDULERS[name]()
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join([*SCHEDULERS, ALL_SCHEDULERS])
        raise InputError(f"--policy {name!r} does not exist", hint=f"Available: {known}; or MODULE:CLASS.")
    try:
        scheduler: Scheduler = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError) as error:
        raise InputError(
            f"--policy {name!r} cannot be loaded: {error}", hint="Name a class that needs no arguments, on PYTHONPATH."
        ) from error
    missing = [part for part in ("name", "arrange", "decide") if not hasattr(scheduler, part)]
    if missing:
        raise InputError(
            f"--policy {name!r} has no {missing[0]}", hint="See vkgateway_platform.simulate.policies.scheduler."
        )
    return scheduler
