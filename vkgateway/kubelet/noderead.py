"""What compute nodes say of their pods, asked through the compute API servers and shared by all tenants.

One question is under way at a time for each node and kind, its answer serves everybody for a few seconds, and only so
many nodes of a cluster are asked at once. A node that does not answer is left alone for a while, and told of once in
the log. A node that KWOK plays is not asked: see `simulated`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import structlog

from vkgateway.kube import errors
from vkgateway.kube.requests import Params
from vkgateway.kube.resources import NODES
from vkgateway.kubelet.exposition import NodeText, read_text
from vkgateway.kubelet.podstats import NodePods, read_summary
from vkgateway.kubelet.simulated import play_nothing, play_resource, play_summary
from vkgateway.kubelet.target import Asking, PlacedPod, Simulation

FRESH_SECONDS: Final = 5.0
"""How long an answer serves; kubelets look at their containers every 10 s."""
NODE_SECONDS: Final = 4.0
"""How long one node may take."""
ALL_SECONDS: Final = 8.0
"""How long a request waits for all its nodes; metrics-server waits 10 s for us."""
SILENT_SECONDS: Final = 30.0
AT_ONCE: Final = 16
_ANSWER_MAX: Final = 32 * 1024 * 1024
_IN_A_THREAD: Final = 64 * 1024
"""Bytes from which on an answer is split beside the event loop."""
_KEPT_MAX: Final = 4096

_log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """What a node is asked: a path of its kubelet, and how the answer is read."""

    path: str
    read: Callable[[bytes], T]
    play: Callable[[PlacedPod, Simulation, datetime], T]
    """Makes the answer for a pod on a node that KWOK plays."""
    params: tuple[tuple[str, str], ...] = ()


SUMMARY: Final[Question[NodePods]] = Question("stats/summary", read_summary, play_summary)
USAGE: Final[Question[NodePods]] = Question(
    "stats/summary", read_summary, play_summary, (("only_cpu_and_memory", "true"),)
)
RESOURCE: Final[Question[NodeText]] = Question("metrics/resource", read_text, play_resource)
CADVISOR: Final[Question[NodeText]] = Question("metrics/cadvisor", read_text, play_nothing)
PROBES: Final[Question[NodeText]] = Question("metrics/probes", read_text, play_nothing)

_Key = tuple[Asking, str, str, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class _Answer:
    task: asyncio.Task[Any]
    until: float


class NodeReader:
    """Asks compute nodes. `clock` gives monotonic seconds, `today` the time of day; the others are those of the
    constants.
    """

    def __init__(
        self,
        *,
        fresh: float = FRESH_SECONDS,
        node_timeout: float = NODE_SECONDS,
        all_timeout: float = ALL_SECONDS,
        silent: float = SILENT_SECONDS,
        at_once: int = AT_ONCE,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._today = today
        self._fresh = fresh
        self._node_timeout = node_timeout
        self._all_timeout = all_timeout
        self._silent = silent
        self._at_once = at_once
        self._clock = clock
        self._answers: dict[_Key, _Answer] = {}
        self._rooms: WeakKeyDictionary[Asking, asyncio.Semaphore] = WeakKeyDictionary()
        self._told: WeakKeyDictionary[Asking, set[str]] = WeakKeyDictionary()
        self._purging: asyncio.TimerHandle | None = None

    async def read(self, pods: Iterable[PlacedPod], question: Question[T]) -> list[tuple[PlacedPod, T]]:
        """Those pods whose nodes answered in time, each with what its node said."""
        placed, now = list(pods), self._today()
        played = [(pod, question.play(pod, pod.played, now)) for pod in placed if pod.played is not None]
        return [*await self._measured([pod for pod in placed if not pod.on_played_node], question), *played]

    async def _measured(self, placed: list[PlacedPod], question: Question[T]) -> list[tuple[PlacedPod, T]]:
        tasks = {(pod.cluster, pod.node): self._task(pod, question) for pod in placed}
        if not tasks:
            return []
        await asyncio.wait(set(tasks.values()), timeout=self._all_timeout)
        said: dict[tuple[Asking, str], T | None] = {
            place: task.result() for place, task in tasks.items() if task.done() and not task.cancelled()
        }
        answers = ((pod, said.get((pod.cluster, pod.node))) for pod in placed)
        return [(pod, told) for pod, told in answers if told is not None]

    async def close(self) -> None:
        """End what is under way and forget everything."""
        answers, self._answers = list(self._answers.values()), {}
        if self._purging is not None:
            self._purging.cancel()
            self._purging = None
        for answer in answers:
            answer.task.cancel()
        await asyncio.gather(*(answer.task for answer in answers), return_exceptions=True)

    def _task(self, pod: PlacedPod, question: Question[T]) -> asyncio.Task[Any]:
        """The answer that is there or under way, or a new one."""
        key = (pod.cluster, pod.node, question.path, question.params)
        known = self._answers.get(key)
        if known is not None and (known.until > self._clock() or not known.task.done()):
            return known.task
        task: asyncio.Task[Any] = asyncio.create_task(self._ask(key, question), name=f"node-stats/{pod.node}")
        if len(self._answers) >= _KEPT_MAX:
            self._purge()
        self._answers[key] = _Answer(task, self._clock() + self._fresh)
        if self._purging is None:
            self._purge_later()
        return task

    async def _ask(self, key: _Key, question: Question[Any]) -> Any:
        cluster, node, path, params = key
        room = self._rooms.setdefault(cluster, asyncio.Semaphore(self._at_once))
        lasts = self._silent
        try:
            async with room:
                answer = await self._get(cluster, node, path, dict(params))
            read = question.read
            told = read(answer) if len(answer) < _IN_A_THREAD else await asyncio.to_thread(read, answer)
            lasts = self._fresh
            self._told.get(cluster, set()).discard(f"{node} {path}")
            return told
        except (errors.ApiError, msgspec.DecodeError) as error:
            self._tell(cluster, node, path, error)
            return None
        finally:
            if (mine := self._answers.get(key)) is not None and mine.task is asyncio.current_task():
                mine.until = self._clock() + lasts

    async def _get(self, cluster: Asking, node: str, path: str, params: Params) -> bytes:
        where = NODES.path(name=node, subresource=f"proxy/{path}")
        answer = await cluster.request("GET", where, params=params or None, timeout=self._node_timeout)
        if len(answer) > _ANSWER_MAX:
            raise errors.AnswerTooLong(f"node {node} told more than {_ANSWER_MAX} bytes", status=500)
        return answer

    def _tell(self, cluster: Asking, node: str, path: str, error: Exception) -> None:
        told = self._told.setdefault(cluster, set())
        if f"{node} {path}" not in told:
            told.add(f"{node} {path}")
            _log.warning(
                "a compute node tells nothing of its pods", compute=cluster.name, node=node, path=path, error=str(error)
            )

    def _purge_later(self) -> None:
        self._purging = asyncio.get_running_loop().call_later(self._fresh, self._purge)

    def _purge(self) -> None:
        """Let go of answers whose time is over; if there are too many still, of the oldest."""
        now = self._clock()
        kept = {key: one for key, one in self._answers.items() if one.until > now or not one.task.done()}
        for key in [key for key, one in kept.items() if one.task.done()][: max(0, len(kept) - _KEPT_MAX // 2)]:
            del kept[key]
        self._answers = kept
        if self._purging is not None:
            self._purging.cancel()
            self._purging = None
        if self._answers:
            self._purge_later()
