"""What compute nodes say of their pods, asked through the compute API servers and shared by all tenants.

One question is under way at a time for each node and kind, its answer serves everybody for a few seconds, and only so
many nodes of a cluster are asked at once. A node that does not answer is left alone for a while, and told of once in
the log. A node that KWOK plays is not asked: see `simulated`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import structlog

from vkgateway.kube import errors
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.requests import Params
from vkgateway.kube.resources import NODES
from vkgateway.kubelet.exposition import NodeSamples, parse_samples
from vkgateway.kubelet.podstats import NodePods, parse_summary
from vkgateway.kubelet.simulation import simulate_nothing, simulate_resource, simulate_summary
from vkgateway.kubelet.target import NodeProxy, PlacedPod, Simulation

CACHE_SECONDS: Final = 5.0
"""How long an answer serves; kubelets look at their containers every 10 s."""
NODE_TIMEOUT_SECONDS: Final = 4.0
"""How long one node may take."""
TOTAL_TIMEOUT_SECONDS: Final = 8.0
"""How long a request waits for all its nodes; metrics-server waits 10 s for us."""
FAILURE_CACHE_SECONDS: Final = 30.0
MAX_CONCURRENT_NODES: Final = 16
_MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
_THREAD_BYTES: Final = 64 * 1024
"""Bytes from which on an answer is split beside the event loop."""
_MAX_CACHED: Final = 4096

_log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeQuery(Generic[T]):
    """What a node is asked: a path of its kubelet, and how the answer is read."""

    path: str
    parse: Callable[[bytes], T]
    simulate: Callable[[PlacedPod, Simulation, datetime], T]
    """Makes the answer for a pod on a node that KWOK plays."""
    params: tuple[tuple[str, str], ...] = ()


SUMMARY: Final[NodeQuery[NodePods]] = NodeQuery("stats/summary", parse_summary, simulate_summary)
USAGE: Final[NodeQuery[NodePods]] = NodeQuery(
    "stats/summary", parse_summary, simulate_summary, (("only_cpu_and_memory", "true"),)
)
RESOURCE: Final[NodeQuery[NodeSamples]] = NodeQuery("metrics/resource", parse_samples, simulate_resource)
CADVISOR: Final[NodeQuery[NodeSamples]] = NodeQuery("metrics/cadvisor", parse_samples, simulate_nothing)
PROBES: Final[NodeQuery[NodeSamples]] = NodeQuery("metrics/probes", parse_samples, simulate_nothing)

_Key = tuple[NodeProxy, str, str, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class _CachedAnswer:
    task: asyncio.Task[Any]
    expires_at: float


class NodeStatsReader:
    """Asks compute nodes. `clock` gives monotonic seconds, `today` the time of day; the others are those of the
    constants.
    """

    def __init__(
        self,
        *,
        fresh: float = CACHE_SECONDS,
        node_timeout: float = NODE_TIMEOUT_SECONDS,
        all_timeout: float = TOTAL_TIMEOUT_SECONDS,
        silent: float = FAILURE_CACHE_SECONDS,
        at_once: int = MAX_CONCURRENT_NODES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._cache_seconds = fresh
        self._node_timeout = node_timeout
        self._all_timeout = all_timeout
        self._failure_cache_seconds = silent
        self._max_concurrent = at_once
        self._clock = clock
        self._answers: dict[_Key, _CachedAnswer] = {}
        self._semaphores: WeakKeyDictionary[NodeProxy, asyncio.Semaphore] = WeakKeyDictionary()
        self._warned: WeakKeyDictionary[NodeProxy, set[str]] = WeakKeyDictionary()
        self._purge_timer: asyncio.TimerHandle | None = None

    async def read_pods(self, pods: Iterable[PlacedPod], question: NodeQuery[T]) -> list[tuple[PlacedPod, T]]:
        """Those pods whose nodes answered in time, each with what its node said."""
        placed, now = list(pods), self._clock.now()
        played = [(pod, question.simulate(pod, pod.simulation, now)) for pod in placed if pod.simulation is not None]
        return [*await self._query_nodes([pod for pod in placed if not pod.on_simulated_node], question), *played]

    async def _query_nodes(self, placed: list[PlacedPod], question: NodeQuery[T]) -> list[tuple[PlacedPod, T]]:
        tasks = {(pod.cluster, pod.node): self._get_task(pod, question) for pod in placed}
        if not tasks:
            return []
        await asyncio.wait(set(tasks.values()), timeout=self._all_timeout)
        said: dict[tuple[NodeProxy, str], T | None] = {
            place: task.result() for place, task in tasks.items() if task.done() and not task.cancelled()
        }
        answers = ((pod, said.get((pod.cluster, pod.node))) for pod in placed)
        return [(pod, told) for pod, told in answers if told is not None]

    async def close(self) -> None:
        """End what is under way and forget everything."""
        answers, self._answers = list(self._answers.values()), {}
        if self._purge_timer is not None:
            self._purge_timer.cancel()
            self._purge_timer = None
        for answer in answers:
            answer.task.cancel()
        await asyncio.gather(*(answer.task for answer in answers), return_exceptions=True)

    def _get_task(self, pod: PlacedPod, question: NodeQuery[T]) -> asyncio.Task[Any]:
        """The answer that is there or under way, or a new one."""
        key = (pod.cluster, pod.node, question.path, question.params)
        known = self._answers.get(key)
        if known is not None and (known.expires_at > self._clock.monotonic() or not known.task.done()):
            return known.task
        task: asyncio.Task[Any] = asyncio.create_task(self._query_node(key, question), name=f"node-stats/{pod.node}")
        if len(self._answers) >= _MAX_CACHED:
            self._purge_expired()
        self._answers[key] = _CachedAnswer(task, self._clock.monotonic() + self._cache_seconds)
        if self._purge_timer is None:
            self._schedule_purge()
        return task

    async def _query_node(self, key: _Key, question: NodeQuery[Any]) -> Any:
        cluster, node, path, params = key
        room = self._semaphores.setdefault(cluster, asyncio.Semaphore(self._max_concurrent))
        lasts = self._failure_cache_seconds
        try:
            async with room:
                answer = await self._request_node(cluster, node, path, dict(params))
            read = question.parse
            told = read(answer) if len(answer) < _THREAD_BYTES else await asyncio.to_thread(read, answer)
            lasts = self._cache_seconds
            self._warned.get(cluster, set()).discard(f"{node} {path}")
            return told
        except (errors.ApiError, msgspec.DecodeError) as error:
            self._warn_once(cluster, node, path, error)
            return None
        finally:
            if (mine := self._answers.get(key)) is not None and mine.task is asyncio.current_task():
                mine.expires_at = self._clock.monotonic() + lasts

    async def _request_node(self, cluster: NodeProxy, node: str, path: str, params: Params) -> bytes:
        where = NODES.path(name=node, subresource=f"proxy/{path}")
        answer = await cluster.request("GET", where, params=params or None, timeout=self._node_timeout)
        if len(answer) > _MAX_ANSWER_BYTES:
            raise errors.ResponseTooLarge(f"node {node} told more than {_MAX_ANSWER_BYTES} bytes", status=500)
        return answer

    def _warn_once(self, cluster: NodeProxy, node: str, path: str, error: Exception) -> None:
        told = self._warned.setdefault(cluster, set())
        if f"{node} {path}" not in told:
            told.add(f"{node} {path}")
            _log.warning(
                "a compute node tells nothing of its pods", compute=cluster.name, node=node, path=path, error=str(error)
            )

    def _schedule_purge(self) -> None:
        self._purge_timer = asyncio.get_running_loop().call_later(self._cache_seconds, self._purge_expired)

    def _purge_expired(self) -> None:
        """Let go of answers whose time is over; if there are too many still, of the oldest."""
        now = self._clock.monotonic()
        kept = {key: one for key, one in self._answers.items() if one.expires_at > now or not one.task.done()}
        for key in [key for key, one in kept.items() if one.task.done()][: max(0, len(kept) - _MAX_CACHED // 2)]:
            del kept[key]
        self._answers = kept
        if self._purge_timer is not None:
            self._purge_timer.cancel()
            self._purge_timer = None
        if self._answers:
            self._schedule_purge()
