"""A journal undoes changes in reverse order; trials undo theirs unless they are committed."""

from __future__ import annotations

import pytest

from vkgateway.scheduler.core.journal import Journal


class Numbers:
    """Numbers by name, whose changes a journal records."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.now: dict[str, int] = {"a": 1}

    def change(self, name: str, number: int) -> None:
        self.journal.record(self.now.update, {name: self.now[name]})
        self.now[name] = number


@pytest.fixture
def numbers() -> Numbers:
    return Numbers(Journal())


def test_changes_are_undone_at_end_of_block(numbers: Numbers) -> None:
    with numbers.journal.trial():
        numbers.change("a", 2)
        numbers.change("a", 3)
    assert numbers.now == {"a": 1}


def test_committed_changes_stay(numbers: Numbers) -> None:
    with numbers.journal.trial() as trial:
        numbers.change("a", 2)
        trial.commit()
    assert numbers.now == {"a": 2}


def test_exception_undoes_changes(numbers: Numbers) -> None:
    def fail() -> None:
        with numbers.journal.trial():
            numbers.change("a", 2)
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert numbers.now == {"a": 1}


def test_outer_trial_undoes_committed_inner_trial(numbers: Numbers) -> None:
    with numbers.journal.trial(), numbers.journal.trial() as inner:
        numbers.change("a", 2)
        inner.commit()
    assert numbers.now == {"a": 1}


def test_all_that_share_a_journal_are_undone_together(numbers: Numbers) -> None:
    other = Numbers(numbers.journal)
    with numbers.journal.trial():
        numbers.change("a", 2)
        other.change("a", 3)
    assert (numbers.now, other.now) == ({"a": 1}, {"a": 1})


def test_what_is_forgotten_stays(numbers: Numbers) -> None:
    numbers.change("a", 2)
    numbers.journal.forget()
    numbers.change("a", 3)
    numbers.journal.undo()
    assert numbers.now == {"a": 2}
