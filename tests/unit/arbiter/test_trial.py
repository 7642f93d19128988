"""Trials undo their changes unless they are committed."""

from __future__ import annotations

import pytest

from vkgateway.arbiter.trial import JointState, Trial


class Numbers(list[int]):
    """A list that can go back to an earlier length."""

    def mark(self) -> int:
        return len(self)

    def undo(self, mark: int) -> None:
        del self[mark:]


def test_changes_are_undone_at_end_of_block() -> None:
    numbers = Numbers([1])
    with Trial(numbers):
        numbers.append(2)
    assert numbers == [1]


def test_committed_changes_stay() -> None:
    numbers = Numbers([1])
    with Trial(numbers) as trial:
        numbers.append(2)
        trial.commit()
    assert numbers == [1, 2]


def test_block_continues_after_restart() -> None:
    numbers = Numbers([1])
    with Trial(numbers) as trial:
        numbers.append(2)
        trial.restart()
        numbers.append(3)
        trial.commit()
    assert numbers == [1, 3]


def test_exception_undoes_changes() -> None:
    numbers = Numbers([1])

    def fail() -> None:
        with Trial(numbers):
            numbers.append(2)
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert numbers == [1]


def test_outer_trial_undoes_committed_inner_trial() -> None:
    numbers = Numbers([1])
    with Trial(numbers), Trial(numbers) as inner:
        numbers.append(2)
        inner.commit()
    assert numbers == [1]


def test_joint_states_are_undone_together() -> None:
    first, second = Numbers([1]), Numbers([2])
    with Trial(JointState(first, second)):
        first.append(3)
        second.append(4)
    assert (first, second) == ([1], [2])
