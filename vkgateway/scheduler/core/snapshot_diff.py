"""Difference of the gangs of two snapshots. This module does without numpy, as a starting gateway does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from vkgateway.scheduler.core.snapshot import Gang


def diff_gangs(before: Sequence[Gang], after: Sequence[Gang]) -> tuple[list[Gang], list[Gang]]:
    """Return the new or changed gangs, and the deleted or replaced ones. Most of hundreds of thousands of gangs are the
    same objects, in the order of their names. Their memory is not even read. In another order, the result may
    contain unchanged gangs.
    """
    added: list[Gang] = []
    deleted: list[Gang] = []
    if isinstance(before, tuple) and before == after:
        return added, deleted  # In C the same objects are compared without a touch of their memory.
    olds, news = iter(before), iter(after)
    while True:
        for old, new in zip_longest(olds, news):
            if old is not new:
                break
        else:
            return added, deleted
        while old is not new and old is not None and new is not None:
            old_id, new_id = old.id, new.id
            if old_id <= new_id:
                deleted.append(old)
                old = next(olds, None)
            if new_id <= old_id:
                added.append(new)
                new = next(news, None)
        if old is None or new is None:
            added += [] if new is None else [new, *news]
            deleted += [] if old is None else [old, *olds]
            return added, deleted
