"""Questions about a small cluster, and that nothing comes of asking."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tests.unit.arbiter.simulated_cluster import Cluster
from vkgateway.arbiter.cache import Cache
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.outcome import apply_decisions
from vkgateway.arbiter.snapshot import PoolKey, Snapshot
from vkgateway.arbiter.whatif.answering import answer_question
from vkgateway.arbiter.whatif.answers import Answer
from vkgateway.arbiter.whatif.questions import Question
from vkgateway.arbiter.whatif.simulation import ObservedCycle


def ask_question(
    there: Cluster, question: Question, *, after: float = 0.0, divided: Mapping[PoolKey, frozenset[str]] | None = None
) -> Answer:
    """The answer, so many seconds after the cluster's next cycle, which the gateway keeps.

    The question leaves the snapshot, the decisions and what the gateway carries over as they are: its next cycle
    decides what it decides without the question.
    """
    snapshot = there.snapshot()
    carry = Cache()
    decisions = decide(snapshot, there.now, carry)
    before = encode_state(snapshot, decisions)
    seen = ObservedCycle(snapshot=snapshot, decisions=decisions, time=there.now, part_labels=divided or {})
    answer = answer_question(question, seen, there.now + after)
    assert encode_state(snapshot, decisions) == before, "the question changed what it was asked about"
    following = apply_decisions(snapshot, decisions, there.now)
    alone = Cache()
    decide(snapshot, there.now, alone)
    assert decide(following, there.now + 1, carry) == decide(following, there.now + 1, alone)
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Answer) == answer
    return answer


def encode_state(snapshot: Snapshot, decisions: Decisions) -> bytes:
    """All of it."""
    return msgspec.json.encode((snapshot, decisions))
