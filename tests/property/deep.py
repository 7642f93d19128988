"""Check the arbiter's invariants over many random stories on all cores.

Usage: `python -m tests.property.deep [STORIES [INVARIANT...]]`. The command reports its progress and, for each failure,
the seed and the story in its shortest form. It exits with 1 if a story failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from random import Random

from tests.unit.arbiter.budget_stories import INVARIANTS as STOPPING
from tests.unit.arbiter.changing_cluster import whatever_changes
from tests.unit.arbiter.failure_stories import INVARIANTS as FAILING
from tests.unit.arbiter.limit_stories import INVARIANTS as LIMITED
from tests.unit.arbiter.multi_pool_stories import INVARIANTS as APART
from tests.unit.arbiter.preemption_stories import INVARIANTS as PREEMPTING
from tests.unit.arbiter.reserve_stories import INVARIANTS as RESERVING
from tests.unit.arbiter.stories import Story, shorten_story
from tests.unit.arbiter.story_invariants import INVARIANTS as TOLD
from tests.unit.arbiter.story_invariants import StoryCheck, with_past_shares
from tests.unit.arbiter.test_cache import cached_and_uncached

INVARIANTS: dict[str, Callable[[Random], StoryCheck]] = {
    **TOLD,
    **APART,
    **PREEMPTING,
    **RESERVING,
    **STOPPING,
    **LIMITED,
    **FAILING,
    "cached_and_uncached": cached_and_uncached,
    "whatever_changes": whatever_changes,
    "cached_and_uncached_by_past_shares": partial(with_past_shares, invariant=cached_and_uncached),
    "whatever_changes_by_past_shares": partial(with_past_shares, invariant=whatever_changes),
}

_CHUNK = 100
_PROGRESS_SECONDS = 10.0
"""Seconds between two lines of progress."""


@dataclass(frozen=True)
class Failure:
    """Story in which an invariant does not hold."""

    invariant: str
    seed: int
    error: str
    story: str


def stories_per_invariant(stories: int, invariants: int) -> int:
    """Return the number of stories of each invariant, rounded up.

    Raises:
        ValueError: There are fewer stories than invariants.
    """
    if stories < invariants:
        raise ValueError(
            f"{stories} stories are fewer than the {invariants} invariants, some of which would not be checked."
            f" Set VKGATEWAY_CASES or VKGATEWAY_STORIES to {invariants} or more."
        )
    return -(-stories // invariants)


def find_failures(invariant: str, seeds: range, *, shorten: bool = True) -> list[Failure]:
    """Return the failures of an invariant among these stories."""
    return list(_failures(invariant, seeds, shorten=shorten))


def _failures(invariant: str, seeds: range, *, shorten: bool) -> Iterator[Failure]:
    for seed in seeds:
        story, tell = INVARIANTS[invariant](Random(seed))
        error = _story_error(tell, story)
        if error is None:
            continue
        short = shorten_story(story, partial(fails_similarly, tell, error)) if shorten else story
        yield Failure(invariant, seed, _story_error(tell, short) or "", str(short))


def fails_similarly(tell: Callable[[Story], None], error: str, story: Story) -> bool:
    """Return whether a story fails with an error that begins with the same two words."""
    return (_story_error(tell, story) or "").split()[:2] == error.split()[:2]


def _story_error(tell: Callable[[Story], None], story: Story) -> str | None:
    try:
        tell(story)
    except Exception as error:  # noqa: BLE001 - whatever it is, the story fails
        return f"{type(error).__name__}: {error}"
    return None


def main() -> int:
    """Run the stories, spread over the invariants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stories", type=int, nargs="?", default=os.environ.get("VKGATEWAY_STORIES", "1000"))
    parser.add_argument("invariants", nargs="*", default=sorted(INVARIANTS))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    try:
        each = stories_per_invariant(options.stories, len(options.invariants))
    except ValueError as error:
        parser.error(str(error))
    chunks = [
        (invariant, range(start, min(start + _CHUNK, options.first + each)))
        for start in range(options.first, options.first + each, _CHUNK)
        for invariant in options.invariants
    ]
    failed = _run_chunks(chunks, cases=each * len(options.invariants))
    for failure in failed:
        print(f"failed: {failure.invariant} --first {failure.seed}: {failure.error}", file=sys.stderr)  # noqa: T201
    return 1 if failed else 0


def _run_chunks(chunks: list[tuple[str, range]], *, cases: int) -> list[Failure]:
    begun = said = time.monotonic()
    done = 0
    failed: list[Failure] = []
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        waiting = {workers.submit(find_failures, invariant, seeds): len(seeds) for invariant, seeds in chunks}
        for finished in as_completed(waiting):
            done += waiting[finished]
            for failure in finished.result():
                failed.append(failure)
                print(f"{failure.invariant}, seed {failure.seed}: {failure.error}\n{failure.story}\n", flush=True)  # noqa: T201
            now = time.monotonic()
            if now - said >= _PROGRESS_SECONDS or done == cases:
                said = now
                left = (now - begun) / done * (cases - done)
                print(f"{done} of {cases} stories, {len(failed)} failures; {left / 60:.0f} min left", file=sys.stderr)  # noqa: T201
    return failed


if __name__ == "__main__":
    sys.exit(main())
