"""Answers to what-if questions, given the last cycle (pure)."""

from __future__ import annotations

from vkgateway.scheduler.core.whatif import drains, gangs, growth, guarantees
from vkgateway.scheduler.core.whatif.answers import Answer
from vkgateway.scheduler.core.whatif.questions import DrainQuestion, GangQuestion, GuaranteeQuestion, Question
from vkgateway.scheduler.core.whatif.simulation import ObservedCycle, Simulation


def answer_question(question: Question, observed: ObservedCycle, now: float) -> Answer:
    """Answer a question about a cycle's snapshot, as the arbiter decides it `now` (seconds since the epoch).

    Raises:
        NotFoundError: The question names an object that does not exist.
        InputError: The question is impossible. Both errors name the field, its value and a remedy.
    """
    simulation = Simulation(observed, now)
    if isinstance(question, GangQuestion):
        return gangs.answer_gang(question, simulation)
    if isinstance(question, GuaranteeQuestion):
        return guarantees.answer_guarantee(question, simulation)
    if isinstance(question, DrainQuestion):
        return drains.answer_drain(question, simulation)
    return growth.answer_growth(question, simulation)
