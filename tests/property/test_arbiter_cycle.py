"""The cycle over random stories, carried out step by step: what must hold whatever comes.

`VKGATEWAY_CASES` says over how many stories each invariant is looked at; one that fails is told in its shortest form.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.unit.arbiter.stories import Story, shortened
from tests.unit.arbiter.told import INVARIANTS

CASES = int(os.environ.get("VKGATEWAY_CASES", "40"))
CHUNKS = 4
"""Tests for each invariant, so that they may run side by side."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("invariant", sorted(INVARIANTS))
def test_holds_in_every_story(invariant: str, chunk: int) -> None:
    for seed in range(chunk, CASES, CHUNKS):
        found, tell = INVARIANTS[invariant](Random(seed))
        try:
            tell(found)
        except Exception as error:
            kind = type(error)

            def fails(each: Story, kind: type[Exception] = kind) -> bool:
                try:
                    tell(each)  # noqa: B023 - called at once
                except kind:
                    return True
                return False

            found = shortened(found, fails)
            print(f"{invariant}, seed {seed}, in short:\n{found}")  # noqa: T201 - the story is what tells
            tell(found)
            raise
