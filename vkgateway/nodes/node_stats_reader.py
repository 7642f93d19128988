"""Statistics of pods from the compute nodes, read through the compute API servers and shared by all tenants.

At most one request per node and path is in progress, and its response is cached for a few seconds. The concurrent
requests of a compute cluster are limited. After a failure, a node is not requested for a while; one warning is logged.
Nodes that KWOK simulates are not requested: see `simulation`.
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
from vkgateway.nodes.exposition import NodeSamples, parse_samples
from vkgateway.nodes.podstats import NodePods, parse_summary
from vkgateway.nodes.simulation import simulate_nothing, simulate_resource, simulate_summary
from vkgateway.nodes.target import NodeProxy, PlacedPod, Simulation

CACHE_SECONDS: Final = 5.0
"""Lifetime of a response. Kubelets measure their containers every 10 s."""
NODE_TIMEOUT_SECONDS: Final = 4.0
"""Timeout of one node."""
TOTAL_TIMEOUT_SECONDS: Final = 8.0
"""Timeout of all nodes of a request. The timeout of metrics-server is 10 s."""
FAILURE_CACHE_SECONDS: Final = 30.0
MAX_CONCURRENT_NODES: Final = 16
_MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
_THREAD_BYTES: Final = 64 * 1024
"""Size above which a response is parsed in a thread."""
_MAX_CACHED: Final = 4096

_log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeQuery(Generic[T]):
    """A path of a node's kubelet, and the parser of its response."""

    path: str
    parse: Callable[[bytes], T]
    simulate: Callable[[PlacedPod, Simulation, datetime], T]
    """Returns the result for a pod on a node that KWOK simulates."""
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
    """Reader of the compute nodes' statistics. For the settings, see the constants of this module."""

    def __init__(
        self,
        *,
        cache_seconds: float = CACHE_SECONDS,
        node_timeout: float = NODE_TIMEOUT_SECONDS,
        total_timeout: float = TOTAL_TIMEOUT_SECONDS,
        max_concurrent: int = MAX_CONCURRENT_NODES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._cache_seconds = cache_seconds
        self._node_timeout = node_timeout
        self._total_timeout = total_timeout
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._answers: dict[_Key, _CachedAnswer] = {}
        self._semaphores: WeakKeyDictionary[NodeProxy, asyncio.Semaphore] = WeakKeyDictionary()
        self._warned: WeakKeyDictionary[NodeProxy, set[str]] = WeakKeyDictionary()
        self._purge_timer: asyncio.TimerHandle | None = None

    async def read_pods(self, pods: Iterable[PlacedPod], query: NodeQuery[T]) -> list[tuple[PlacedPod, T]]:
        """Return the pods whose nodes answered in time, each with the result of its node."""
        pods, now = list(pods), self._clock.now()
        simulated = [(pod, query.simulate(pod, pod.simulation, now)) for pod in pods if pod.simulation is not None]
        return [*await self._query_nodes([pod for pod in pods if not pod.on_simulated_node], query), *simulated]

    async def _query_nodes(self, pods: list[PlacedPod], query: NodeQuery[T]) -> list[tuple[PlacedPod, T]]:
        tasks = {(pod.cluster, pod.node): self._get_task(pod, query) for pod in pods}
        if not tasks:
            return []
        await asyncio.wait(set(tasks.values()), timeout=self._total_timeout)
        results: dict[tuple[NodeProxy, str], T | None] = {
            node: task.result() for node, task in tasks.items() if task.done() and not task.cancelled()
        }
        pod_results = ((pod, results.get((pod.cluster, pod.node))) for pod in pods)
        return [(pod, result) for pod, result in pod_results if result is not None]

    async def close(self) -> None:
        """Cancel all requests and clear the cache."""
        answers, self._answers = list(self._answers.values()), {}
        if self._purge_timer is not None:
            self._purge_timer.cancel()
            self._purge_timer = None
        for answer in answers:
            answer.task.cancel()
        await asyncio.gather(*(answer.task for answer in answers), return_exceptions=True)

    def _get_task(self, pod: PlacedPod, query: NodeQuery[T]) -> asyncio.Task[Any]:
        """Return the task of a cached or pending request, or start a request."""
        key = (pod.cluster, pod.node, query.path, query.params)
        cached = self._answers.get(key)
        if cached is not None and (cached.expires_at > self._clock.monotonic() or not cached.task.done()):
            return cached.task
        task: asyncio.Task[Any] = asyncio.create_task(self._query_node(key, query), name=f"node-stats/{pod.node}")
        if len(self._answers) >= _MAX_CACHED:
            self._purge_expired()
        self._answers[key] = _CachedAnswer(task, self._clock.monotonic() + self._cache_seconds)
        if self._purge_timer is None:
            self._schedule_purge()
        return task

    async def _query_node(self, key: _Key, query: NodeQuery[Any]) -> Any:
        cluster, node, path, params = key
        semaphore = self._semaphores.setdefault(cluster, asyncio.Semaphore(self._max_concurrent))
        lifetime = FAILURE_CACHE_SECONDS
        try:
            async with semaphore:
                body = await self._request_node(cluster, node, path, dict(params))
            parse = query.parse
            result = parse(body) if len(body) < _THREAD_BYTES else await asyncio.to_thread(parse, body)
            lifetime = self._cache_seconds
            self._warned.get(cluster, set()).discard(f"{node} {path}")
            return result
        except (errors.ApiError, msgspec.DecodeError) as error:
            self._warn_once(cluster, node, path, error)
            return None
        finally:
            if (cached := self._answers.get(key)) is not None and cached.task is asyncio.current_task():
                cached.expires_at = self._clock.monotonic() + lifetime

    async def _request_node(self, cluster: NodeProxy, node: str, path: str, params: Params) -> bytes:
        proxy_path = NODES.path(name=node, subresource=f"proxy/{path}")
        body = await cluster.request("GET", proxy_path, params=params or None, timeout=self._node_timeout)
        if len(body) > _MAX_ANSWER_BYTES:
            raise errors.ResponseTooLarge(f"node {node} returned more than {_MAX_ANSWER_BYTES} bytes", status=500)
        return body

    def _warn_once(self, cluster: NodeProxy, node: str, path: str, error: Exception) -> None:
        warned = self._warned.setdefault(cluster, set())
        if f"{node} {path}" not in warned:
            warned.add(f"{node} {path}")
            _log.warning(
                "statistics of a compute node not read", compute=cluster.name, node=node, path=path, error=str(error)
            )

    def _schedule_purge(self) -> None:
        self._purge_timer = asyncio.get_running_loop().call_later(self._cache_seconds, self._purge_expired)

    def _purge_expired(self) -> None:
        """Drop expired responses, and the oldest ones above the limit."""
        now = self._clock.monotonic()
        valid = {key: entry for key, entry in self._answers.items() if entry.expires_at > now or not entry.task.done()}
        for key in [key for key, entry in valid.items() if entry.task.done()][: max(0, len(valid) - _MAX_CACHED // 2)]:
            del valid[key]
        self._answers = valid
        if self._purge_timer is not None:
            self._purge_timer.cancel()
            self._purge_timer = None
        if self._answers:
            self._schedule_purge()
