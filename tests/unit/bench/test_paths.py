"""Lengths of the gateway's paths, compared with the table in the documentation."""

from __future__ import annotations

import click
import pytest
from msgspec.structs import replace

from bench import paths
from bench.paths import PathLength, find_longer_paths, measure_paths, read_lengths, replace_table
from tests.unit.sync.world import start_world

LENGTH = PathLength(path="forward", files=10, files_without_kube=5, functions=100, moves=50)
PAGE = "text\n<!-- paths: begin -->\nold\n<!-- paths: end -->\nmore\n"


def test_no_path_is_longer_than_in_the_page() -> None:
    lengths = measure_paths()
    assert lengths == measure_paths(), "the counts must not depend on time"
    longer = find_longer_paths(lengths, read_lengths(paths.PAGE.read_text()))
    assert not longer, "\n".join([*longer, f"Shorten the path, or write the table: {paths.COMMAND}"])


async def test_cpu_pod_passes_nothing_of_the_arbiter_but_one_test() -> None:
    async with start_world() as world, world.run_gateway():
        for name in ("first", "second"):
            recorder = await paths._forward(world, name, "default")
            passed = [code.co_name for code in recorder._path() if "/scheduler/service/" in code.co_filename]
            assert passed == ["is_governed"], name


def test_growth_above_a_fifth_is_named() -> None:
    assert find_longer_paths([replace(LENGTH, files=12, functions=1)], [LENGTH]) == []
    assert find_longer_paths([replace(LENGTH, files=13, moves=61)], [LENGTH]) == [
        "forward: 13 files, in architecture.md 10",
        "forward: 61 moves, in architecture.md 50",
    ]
    assert find_longer_paths([LENGTH], []) == ["forward: not in architecture.md"]


def test_written_table_is_read_again() -> None:
    page = replace_table(PAGE, [LENGTH])
    assert read_lengths(page) == [LENGTH]
    assert (page[:5], page[-5:]) == ("text\n", "more\n")
    assert replace_table(page, [LENGTH]) == page


def test_page_without_markers_is_refused() -> None:
    with pytest.raises(click.ClickException, match="paths: begin"):
        replace_table("text\n", [LENGTH])
