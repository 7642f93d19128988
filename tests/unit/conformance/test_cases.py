"""Cases: the suite's list, selection, batches, and the focus pattern."""

from __future__ import annotations

import re

import pytest

from vkgateway.api.errors import InputError
from vkgateway_platform.conformance.cases import (
    Case,
    focus_pattern,
    load_subset,
    parse_cases,
    select_cases,
    split_batches,
)

LIST = """\
- testname: Pods, lifecycle
  codename: '[sig-node] Pods should be (really) run [NodeConformance] [Conformance]'
  description: Long.
  release: v1.9, v1.19
  file: test/e2e/common/node/pods.go
- testname: Scheduler
  codename: '[sig-scheduling] SchedulerPredicates [Serial] validates limits [Conformance]'
  description: Long.
  release: v1.9
  file: test/e2e/scheduling/predicates.go
"""


def test_list_is_parsed_by_name() -> None:
    run, limits = parse_cases(LIST)
    assert run.name == "[sig-node] Pods should be (really) run [NodeConformance] [Conformance]"
    assert (run.file, run.release, run.is_serial) == ("test/e2e/common/node/pods.go", "v1.9, v1.19", False)
    assert (limits.owner_sig, limits.is_serial) == ("sig-scheduling", True)


@pytest.mark.parametrize("text", ["nothing", "- name: other", "{", ""])
def test_text_that_is_not_a_list_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        parse_cases(text)


def test_cases_are_selected_by_focus_and_skip() -> None:
    run, limits = parse_cases(LIST)
    assert select_cases((run, limits)) == (run, limits)
    assert select_cases((run, limits), focus=["sig-node", "nobody"]) == (run,)
    assert select_cases((run, limits), skip=[r"\[Serial\]"]) == (run,)
    with pytest.raises(InputError, match=r"'\('"):
        select_cases((run,), focus=["("])


def test_focus_pattern_matches_only_the_given_cases() -> None:
    run, limits = parse_cases(LIST)
    pattern = re.compile(focus_pattern([run]))
    # The suite matches its title, a blank and the case's full text.
    assert pattern.search(f"Kubernetes e2e suite {run.name}")
    assert not pattern.search(f"Kubernetes e2e suite {run.name} and more")
    assert not pattern.search(f"Kubernetes e2e suite {limits.name}")
    assert re.compile(focus_pattern([run, limits])).search(f"Kubernetes e2e suite {limits.name}")


def test_blanks_and_dashes_are_not_escaped() -> None:
    assert focus_pattern([Case(name="a b-c/d [e]")]) == r" (a b-c/d \[e\])$"


def test_cases_are_split_into_batches() -> None:
    cases = [Case(name=str(number)) for number in range(5)]
    assert [[case.name for case in some] for some in split_batches(cases, size=2)] == [["0", "1"], ["2", "3"], ["4"]]
    assert split_batches([], size=2) == []


def test_subset_is_large_and_quick() -> None:
    names = load_subset()
    assert len(names) >= 60
    assert all("[Conformance]" in name for name in names)
    assert not any(Case(name=name).is_serial or "[Slow]" in name for name in names)
