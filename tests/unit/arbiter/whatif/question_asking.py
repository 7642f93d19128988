"""Questions about a small cluster, which must not change its state."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tests.unit.arbiter.simulated_cluster import Cluster
from vkgateway.scheduler.core.cache import Cache
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.outcome import apply_decisions
from vkgateway.scheduler.core.snapshot import PoolKey, Snapshot
from vkgateway.scheduler.core.whatif.answering import answer_question
from vkgateway.scheduler.core.whatif.answers import Answer
from vkgateway.scheduler.core.whatif.questions import Question
from vkgateway.scheduler.core.whatif.simulation import ObservedCycle


def ask_question(
    cluster: Cluster, question: Question, *, after: float = 0.0, divided: Mapping[PoolKey, frozenset[str]] | None = None
) -> Answer:
    """Return the answer, `after` seconds after the cluster's next cycle, whose state the gateway keeps.

    The question changes neither the snapshot, the decisions nor the cache: the next cycle decides the same without the
    question.
    """
    snapshot = cluster.snapshot()
    carry = Cache()
    decisions = decide(snapshot, cluster.now, carry)
    before = encode_state(snapshot, decisions)
    seen = ObservedCycle(snapshot=snapshot, decisions=decisions, time=cluster.now, part_labels=divided or {})
    answer = answer_question(question, seen, cluster.now + after)
    assert encode_state(snapshot, decisions) == before, "the question changed what it was asked about"
    following = apply_decisions(snapshot, decisions, cluster.now)
    alone = Cache()
    decide(snapshot, cluster.now, alone)
    assert decide(following, cluster.now + 1, carry) == decide(following, cluster.now + 1, alone)
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Answer) == answer
    return answer


def encode_state(snapshot: Snapshot, decisions: Decisions) -> bytes:
    """Encode snapshot and decisions."""
    return msgspec.json.encode((snapshot, decisions))
