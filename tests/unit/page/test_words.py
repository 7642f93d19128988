"""The page has words for all codes that the gateway sends."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import pytest

from vkgateway.scheduler.core.decisions import PERMANENT_REASONS, PendingReason
from vkgateway.scheduler.core.whatif.answers import EffectKind, Verdict

WORDS = Path("vkgateway/page/static/js/core/words.js").read_text()


def constant(name: str) -> str:
    found = re.search(rf"const {name} = (.*?);\n", WORDS, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("name", "codes"),
    [("REASONS", PendingReason), ("VERDICTS", Verdict), ("VERDICT_TONES", Verdict), ("EFFECTS", EffectKind)],
)
def test_every_code_has_words(name: str, codes: Iterable[StrEnum]) -> None:
    assert re.findall(r"(\w+): \"", constant(name)) != []
    assert set(re.findall(r"(\w+): \"", constant(name))) == {str(code) for code in codes}


def test_reasons_that_waiting_never_resolves_are_those_of_the_arbiter() -> None:
    assert set(re.findall(r"\w+", constant("PERMANENT"))) - {"new", "Set"} == {str(code) for code in PERMANENT_REASONS}
