"""Preemption candidates of a pool by gang, which last from cycle to cycle.

Removed candidates leave holes, which are compacted occasionally.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vkgateway.scheduler.core.preemption.candidate_rows import CandidateRows
from vkgateway.scheduler.core.preemption.eviction_units import PreemptionCandidate, candidates_of
from vkgateway.scheduler.core.snapshot import Gang, Pod, PoolKey

_MAX_HOLES = 1024
"""Number of removed candidates below which compaction is not worth the cost."""


class PreemptionCandidates:
    """Preemption candidates of one pool.

    Call `update_gang` after each change of a gang and `remove_gang` after its end.
    """

    def __init__(self, pool: PoolKey, unit: str) -> None:
        self._pool = pool
        self.candidates: list[PreemptionCandidate | None] = []
        """Candidates by number; None: removed."""
        self.dependents: dict[int, tuple[int, ...]] = {}
        """For the min members of a gang, the surplus candidates that are evicted with them."""
        self._numbers_by_gang: dict[str, tuple[int, ...]] = {}
        self.rows = CandidateRows(unit)
        """The same candidates as arrays."""
        self._holes = 0

    def __contains__(self, gang: object) -> bool:
        return gang in self._numbers_by_gang

    def __len__(self) -> int:
        return len(self.candidates) - self._holes

    def update_gang(self, gang: Gang) -> None:
        """Replace the candidates of a gang by those of its current state."""
        self.remove_gang(gang.id)
        candidates = candidates_of(gang, self._pool)
        if candidates:
            self._add_gang(gang, candidates)

    def remove_gang(self, gang: str) -> None:
        """Remove a gang, if it is known."""
        for number in self._numbers_by_gang.pop(gang, ()):
            self.candidates[number] = None
            self.dependents.pop(number, None)
            self.rows.remove_candidate(number)
            self._holes += 1
        if self._holes > _MAX_HOLES and self._holes * 2 > len(self.candidates):
            self._compact()

    def numbers_of_gang(self, gang: str) -> Sequence[int]:
        """Return the numbers of a gang's candidates."""
        return self._numbers_by_gang.get(gang, ())

    def gang_ids(self) -> Iterable[str]:
        return self._numbers_by_gang.keys()

    def all_pods(self) -> Iterator[Pod]:
        """Yield all pods of all candidates."""
        for candidate in self.candidates:
            if candidate is not None:
                yield from candidate.pods

    def _add_gang(self, gang: Gang, candidates: Sequence[PreemptionCandidate]) -> None:
        first = len(self.candidates)
        numbers = tuple(range(first, first + len(candidates)))
        self._numbers_by_gang[gang.id] = numbers
        if candidates[-1].whole and len(candidates) > 1:
            self.dependents[numbers[-1]] = numbers[:-1]
        self.candidates.extend(candidates)
        self.rows.append_gang(gang, numbers, candidates)

    def _compact(self) -> None:
        """Renumber the candidates without holes, in their order."""
        left: dict[str, list[PreemptionCandidate]] = {}
        for candidate in self.candidates:
            if candidate is not None:
                left.setdefault(candidate.gang.id, []).append(candidate)
        self.candidates, self.dependents, self._numbers_by_gang, self._holes = [], {}, {}, 0
        self.rows.clear_rows()
        for candidates in left.values():
            self._add_gang(candidates[0].gang, candidates)
