"""Tests of completion through kubectl."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.cli.plugin.tool import ReviewingApiServer, Tool, pod, put
from vkgateway.cli.plugin.completion import complete_words, main
from vkgateway.kube.resources import NAMESPACES


async def complete(*words: str) -> list[str]:
    """Return the values for the last word, without descriptions, and check the directive."""
    *lines, directive = await asyncio.to_thread(complete_words, words[:-1], words[-1])
    assert directive == ":4"
    return [line.partition("\t")[0] for line in lines]


async def test_commands_and_options() -> None:
    assert await complete("") == ["queue", "explain", "top", "usage", "status", "report"]
    assert await complete("re") == ["report"]
    assert await complete("queue", "--all") == ["--all-namespaces"]
    assert await complete("queue", "-o", "") == ["table", "json", "yaml", "name"]
    assert await complete("queue", "--output=j") == ["--output=json"]


async def test_values_of_kubeconfig_and_cluster(tool: Tool, server: ReviewingApiServer) -> None:
    for name in ("research", "red"):
        server.store.create(NAMESPACES, {"metadata": {"name": name}})
    put(server, pod("train-0"), pod("train-1"), pod("else", namespace="red"))
    assert await complete("queue", "--context", "") == ["here"]
    assert await complete("queue", "--user", "") == ["u"]
    assert await complete("queue", "--cluster=") == ["--cluster=c"]
    assert await complete("queue", "-n", "re") == ["red", "research"]
    assert await complete("explain", "tr") == ["train-0", "train-1"], "the namespace of the context"
    assert await complete("explain", "-n", "red", "") == ["else"]
    assert await complete("-n", "red", "explain", "") == ["else"]


async def test_unreachable_cluster_has_no_values(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    tool.use(monkeypatch, "http://127.0.0.1:1")
    assert await complete("explain", "") == []


async def test_files_are_left_to_the_shell() -> None:
    assert await asyncio.to_thread(complete_words, ["queue", "--kubeconfig"], "") == [":0"]


def test_program_prints_values_and_directive(capsys: pytest.CaptureFixture[str]) -> None:
    main(["ex"])
    out = capsys.readouterr().out.splitlines()
    assert (out[0].startswith("explain\t"), out[-1]) == (True, ":4")
