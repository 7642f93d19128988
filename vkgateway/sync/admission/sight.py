"""Where a tenant's governed pods stand, above and below; and what a compute pod itself tells of what was decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from vkgateway.arbiter.facts import Gang, Pod, PodState, Shape
from vkgateway.kube.reflector import Reflector
from vkgateway.model import times
from vkgateway.model.names import (
    ADMISSION_GATE,
    BORROWED_ANNOTATION,
    COMPUTE_NODE_ANNOTATION,
    EVICTION_DEADLINE_ANNOTATION,
    POOL_LABEL,
)
from vkgateway.sync.admission.endtime import ended_at
from vkgateway.sync.admission.member import Member, gang_id
from vkgateway.sync.admission.seen import Seen
from vkgateway.sync.admission.verdicts import Book, Said, Verdict
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.marks import BEHIND, EVICTED_FOR, RETAKEN
from vkgateway.sync.pods.views import TERMINAL_PHASES, ComputePodView, TenantPodView

_GONE: Final = Seen()


class Look(NamedTuple):
    """A member, looked at once."""

    seen: Seen
    below: ComputePodView | None
    """The compute pod that stands for it."""
    gone: bool
    """Nothing of it is left."""


class Sight:
    """Looks at one tenant's pods. `sent` are the uids of pods that were sent below and may not show there yet."""

    def __init__(
        self,
        tenant: str,
        pods: Reflector[TenantPodView],
        links: Mapping[str, ComputeLink],
        *,
        book: Book,
        sent: Mapping[str, float],
        clock: Callable[[], float],
    ) -> None:
        self._tenant = tenant
        self._pods = pods
        self._links = links
        self._book = book
        self._sent = sent
        self._clock = clock
        self._ended: dict[str, float] = {}
        """When pods that have ended were first seen so, by uid."""
        self.retaken: dict[str, str] = {}
        """Compute pods, by uid, that are being taken back, and the pods that they stood for."""

    def look(self, member: Member) -> Look:
        """Look at a member."""
        above, below = self.above(member), self.below(member)
        if below is not None:
            return Look(self._seen_below(member, above, *below), below[0], gone=False)
        return Look(self._seen_above(member, above), None, gone=above is None and not self.is_sent(member))

    def seen(self, member: Member) -> Seen:
        """Where a member stands now."""
        return self.look(member).seen

    def _seen_above(self, member: Member, above: TenantPodView | None) -> Seen:
        verdict = self._book.verdicts.get(member.uid)
        if above is None or above.terminal or above.metadata.deletion_timestamp is not None:
            if verdict is not None and self.is_sent(member):
                return _ending(_placed(verdict, verdict.node), self._clock() + member.grace)
            return self._seen_ended(member, above)
        return Seen(state=PodState.WAITING) if verdict is None else _placed(verdict, verdict.node)

    def _seen_ended(self, member: Member, pod: TenantPodView | ComputePodView | None) -> Seen:
        """The end of a pod, by its tenant or its compute pod. The gateway may see it late: the pod's status counts."""
        if pod is None or pod.phase not in TERMINAL_PHASES:
            return _GONE
        if member.uid not in self._ended:
            now = self._clock()
            self._ended[member.uid] = min(now, ended_at(pod.status) or now)
        return Seen(done=pod.phase == "Succeeded", failed=pod.phase == "Failed", ended=self._ended[member.uid])

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a pod that is gone."""
        self._ended.pop(uid, None)
        for compute_uid in [each for each, owner in self.retaken.items() if owner == uid]:
            del self.retaken[compute_uid]

    def above(self, member: Member) -> TenantPodView | None:
        """The tenant's pod itself."""
        view = self._pods.items.get(member.key)
        return view if view is not None and view.metadata.uid == member.uid else None

    def is_gated(self, member: Member) -> bool:
        """Whether our gate is on a member still."""
        view = self.above(member)
        return view is not None and any(gate.name == ADMISSION_GATE for gate in view.spec.scheduling_gates)

    def below(self, member: Member) -> tuple[ComputePodView, ComputeLink] | None:
        """The compute pod that stands for a member, and where it is; one that was taken back stands for nobody."""
        for pod, link in self.under(member.key):
            if pod.tenant_uid == member.uid and not self._is_retaken(pod):
                return pod, link
        return None

    def under(self, key: Key) -> Iterator[tuple[ComputePodView, ComputeLink]]:
        """What stands below under a pod's name, and where."""
        for link in self._links.values():
            pod = link.pods.find(self._tenant, key)
            if pod is not None:
                yield pod, link

    def placed_below(self) -> Iterator[ComputePodView]:
        """The compute pods that the arbiter placed and that have not ended."""
        for link in self._links.values():
            for pod in link.pods.of(self._tenant):
                if is_placed(pod) and not pod.ended:
                    yield pod

    def has_owner(self, pod: ComputePodView) -> bool:
        """Whether the tenant pod that a compute pod stands for is still there."""
        above = self._pods.items.get(pod.tenant_key)
        return above is not None and above.metadata.uid == pod.tenant_uid

    def _seen_below(self, member: Member, above: TenantPodView | None, pod: ComputePodView, link: ComputeLink) -> Seen:
        if pod.ended:
            return self._seen_ended(member, pod)
        verdict = self._book.verdicts.get(member.uid)
        if verdict is None:
            verdict = self._book.verdicts[member.uid] = recovered(pod, link.name)
        seen = _placed(verdict, pod.spec.node_name or verdict.node)
        leaving = pod.metadata.deletion_timestamp
        if leaving is not None:
            return _ending(seen, times.parse(leaving).timestamp())
        if above is None or above.terminal or above.metadata.deletion_timestamp is not None:
            return _ending(seen, self._clock() + member.grace)
        return seen

    def is_sent(self, member: Member) -> bool:
        """Whether a member was sent below a moment ago, and may not show there yet."""
        return self._sent.get(member.uid, 0.0) > self._clock()

    def _is_retaken(self, pod: ComputePodView) -> bool:
        return pod.metadata.uid in self.retaken or RETAKEN in pod.metadata.annotations


def is_placed(pod: ComputePodView) -> bool:
    """Whether the arbiter placed a compute pod."""
    return COMPUTE_NODE_ANNOTATION in pod.metadata.annotations


def recovered(pod: ComputePodView, cluster: str) -> Verdict:
    """What was said of a pod that runs, as it is written on it."""
    annotations = pod.metadata.annotations
    deadline = _moment(annotations.get(EVICTION_DEADLINE_ANNOTATION))
    return Verdict(
        said=Said.EVICTING if deadline else Said.ADMITTED,
        pool=(cluster, pod.metadata.labels.get(POOL_LABEL, "")),
        node=pod.spec.node_name or annotations.get(COMPUTE_NODE_ANNOTATION, ""),
        borrowed=annotations.get(BORROWED_ANNOTATION) != "false",
        since=_moment(pod.metadata.creation_timestamp),
        deadline=deadline,
        evicted_for=annotations.get(EVICTED_FOR, ""),
        behind=annotations.get(BEHIND, ""),
    )


def ending_gang(tenant: str, pod: ComputePodView, cluster: str, *, now: float) -> Gang:
    """A pod whose tenant pod is gone, as facts: it is ending, and what it holds comes back."""
    said = recovered(pod, cluster)
    leaving = pod.metadata.deletion_timestamp
    grace = pod.spec.termination_grace_period_seconds
    ending = Pod(
        uid=pod.tenant_uid,
        shape=Shape.of(pod.requests or {}),
        state=PodState.ENDING,
        pool=said.pool,
        node=said.node,
        borrowed=said.borrowed,
        since=said.since,
        deadline=times.parse(leaving).timestamp() if leaving else now + (grace or 0),
    )
    name = gang_id(tenant, f"{pod.tenant_key[0]}/gone/{pod.tenant_uid}")
    return Gang(id=name, tenant=tenant, pods=(ending,), pools=(said.pool,))


def _moment(text: str | None) -> float:
    """Seconds since the epoch; 0 where nothing is told, or something that is no time: annotations can be edited."""
    try:
        return times.parse(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0


def _placed(verdict: Verdict, node: str) -> Seen:
    evicting = verdict.said is Said.EVICTING
    return Seen(
        state=PodState.NOTIFIED if evicting else PodState.PLACED,
        pool=verdict.pool,
        node=node,
        borrowed=verdict.borrowed,
        since=verdict.since,
        deadline=verdict.deadline,
        evicted_for=verdict.evicted_for,
        behind=verdict.behind,
    )


def _ending(seen: Seen, deadline: float) -> Seen:
    """The same pod on its way out, gone by the deadline."""
    return replace(seen, state=PodState.ENDING, deadline=deadline)
