"""Questions about a small cluster, and that nothing comes of asking."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tests.unit.arbiter.sim import Cluster
from vkgateway.arbiter.carry import Carry
from vkgateway.arbiter.cycle import decide
from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.facts import PoolKey, Snapshot
from vkgateway.arbiter.outcome import carried_out
from vkgateway.arbiter.whatif.answers import Answer
from vkgateway.arbiter.whatif.asking import ask
from vkgateway.arbiter.whatif.questions import Question
from vkgateway.arbiter.whatif.trial import Seen


def asked(
    there: Cluster, question: Question, *, after: float = 0.0, divided: Mapping[PoolKey, frozenset[str]] | None = None
) -> Answer:
    """The answer, so many seconds after the cluster's next cycle, which the gateway keeps.

    The question leaves the snapshot, the decisions and what the gateway carries over as they are: its next cycle
    decides what it decides without the question.
    """
    snapshot = there.snapshot()
    carry = Carry()
    decisions = decide(snapshot, there.now, carry)
    before = digest(snapshot, decisions)
    seen = Seen(snapshot=snapshot, decisions=decisions, time=there.now, divided=divided or {})
    answer = ask(question, seen, there.now + after)
    assert digest(snapshot, decisions) == before, "the question changed what it was asked about"
    following = carried_out(snapshot, decisions, there.now)
    alone = Carry()
    decide(snapshot, there.now, alone)
    assert decide(following, there.now + 1, carry) == decide(following, there.now + 1, alone)
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Answer) == answer
    return answer


def digest(snapshot: Snapshot, decisions: Decisions) -> bytes:
    """All of it."""
    return msgspec.json.encode((snapshot, decisions))
