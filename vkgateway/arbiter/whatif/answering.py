"""The way in: a question and the last cycle in, the answer out. Nothing that is handed in is changed (pure)."""

from __future__ import annotations

from vkgateway.arbiter.whatif import drains, gangs, growth, guarantees
from vkgateway.arbiter.whatif.answers import Answer
from vkgateway.arbiter.whatif.questions import DrainQuestion, GangQuestion, GuaranteeQuestion, Question
from vkgateway.arbiter.whatif.simulation import ObservedCycle, Simulation


def answer_question(question: Question, seen: ObservedCycle, now: float) -> Answer:
    """Answer a question about a cycle's snapshot, as the arbiter decides it `now` (seconds since the epoch).

    Raises:
        NotFoundError: the question names what does not exist.
        InputError: what it asks about is impossible. Both name field, value and way out.
    """
    trial = Simulation(seen, now)
    if isinstance(question, GangQuestion):
        return gangs.answer_gang(question, trial)
    if isinstance(question, GuaranteeQuestion):
        return guarantees.answer_guarantee(question, trial)
    if isinstance(question, DrainQuestion):
        return drains.answer_drain(question, trial)
    return growth.answer_growth(question, trial)
