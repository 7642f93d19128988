"""Which gangs differ between two snapshots. It brings no numpy, which a starting gateway does without."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from vkgateway.arbiter.snapshot import Gang


def diff_gangs(before: Sequence[Gang], after: Sequence[Gang]) -> tuple[list[Gang], list[Gang]]:
    """Gangs that are there and were not as they are, and those that were there and are not as they were.

    Of hundreds of thousands most are the same objects, in the order of their names: of these not even the memory is
    touched. In another order it may be more than have changed.
    """
    came: list[Gang] = []
    gone: list[Gang] = []
    if isinstance(before, tuple) and before == after:
        return came, gone  # In C the same objects are compared without a touch of their memory.
    olds, news = iter(before), iter(after)
    while True:
        for old, new in zip_longest(olds, news):
            if old is not new:
                break
        else:
            return came, gone
        while old is not new and old is not None and new is not None:
            old_id, new_id = old.id, new.id
            if old_id <= new_id:
                gone.append(old)
                old = next(olds, None)
            if new_id <= old_id:
                came.append(new)
                new = next(news, None)
        if old is None or new is None:
            came += [] if new is None else [new, *news]
            gone += [] if old is None else [old, *olds]
            return came, gone
