"""Tests of the plugin's connection: recognized clusters, silent servers, missing rights."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.machine import patience
from tests.unit.cli.plugin.tool import ReviewingApiServer, Tool, pod, put, put_nodes, rights, waits
from vkgateway.cli.plugin import connection
from vkgateway.cli.plugin.connection import FIRST_ANSWER_SECONDS
from vkgateway.cli.plugin.rights import Right, refusal_hint, right_of_request


async def test_cluster_with_other_nodes_only_is_refused(tool: Tool, server: ReviewingApiServer) -> None:
    put_nodes(server, {"metadata": {"name": "machine"}})
    assert await tool("queue") == 2
    assert "neither a tenant's cluster nor the management cluster" in tool.err
    assert "--context" in tool.err


async def test_cluster_without_nodes_is_that_of_a_tenant(tool: Tool, server: ReviewingApiServer) -> None:
    assert await tool("queue") == 0
    assert tool.err == "No gangs are pending in namespace ns.\n"
    assert await tool("queue", "-A") == 0
    assert tool.err == "No gangs are pending.\n"


async def test_tenant_option_is_refused_in_tenant_cluster(tool: Tool, server: ReviewingApiServer) -> None:
    for command in (("queue",), ("top",), ("usage",), ("report",), ("explain", "x")):
        assert await tool(*command, "--tenant", "alpha") == 2, command
        assert "is for the management cluster" in tool.err


async def test_options_stand_before_or_after_the_command(tool: Tool, server: ReviewingApiServer) -> None:
    put(server, pod("a", status=waits("x")), pod("b", namespace="other", status=waits("x")))
    assert await tool("-n", "other", "queue", "-o", "name") == 0, tool.err
    assert tool.out == "other/b\n"
    assert await tool("-n", "other", "queue", "-n", "ns", "-o", "name") == 0
    assert tool.out == "ns/a\n"
    assert await tool("-A", "queue", "-n", "ns", "-o", "name") == 0
    assert tool.out == "ns/a\n"
    assert await tool("--context", "none", "queue") == 2
    assert await tool("--context", "none", "queue", "--context", "here") == 0


async def test_namespace_options_exclude_each_other(tool: Tool, server: ReviewingApiServer) -> None:
    assert await tool("queue", "-A", "-n", "ns") == 2
    assert "exclude each other" in tool.err


async def test_silent_server_is_reported_within_two_seconds(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass
        writer.close()

    silent = await asyncio.start_server(hold, "127.0.0.1", 0)
    monkeypatch.setattr(connection, "FIRST_ANSWER_SECONDS", FIRST_ANSWER_SECONDS)
    async with silent:
        tool.use(monkeypatch, f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}")
        began = time.monotonic()
        assert await tool("queue") == 5
        by_default = time.monotonic() - began
        assert "no answer in time" in tool.err
        assert "--request-timeout" in tool.err
        began = time.monotonic()
        assert await tool("queue", "--request-timeout", "200ms") == 5
        assert time.monotonic() - began < by_default
    assert 1.9 < by_default < patience(3)


async def test_longer_timeout_waits_for_slow_server(
    tool: Tool, server: ReviewingApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FIRST_ANSWER_SECONDS", 0.2)
    gate = server.hold("GET", "/apis/vkgateway.io")
    asyncio.get_running_loop().call_later(0.7, gate.set)
    assert await tool("queue", "--request-timeout=1m") == 0, tool.err


async def test_slow_list_after_first_answer_is_no_error(
    tool: Tool, server: ReviewingApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FIRST_ANSWER_SECONDS", patience(1))
    gate = server.hold("GET", "/pods")
    asyncio.get_running_loop().call_later(patience(1) + 0.5, gate.set)
    assert await tool("queue") == 0, tool.err


@pytest.mark.parametrize("duration", ["", "ten", "1x", "5m3"])
async def test_invalid_duration_is_refused(tool: Tool, server: ReviewingApiServer, duration: str) -> None:
    assert await tool("queue", "--request-timeout", duration) == 2
    assert "is not a duration" in tool.err


async def test_refused_connection_names_context(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    tool.use(monkeypatch, "http://127.0.0.1:1")
    assert await tool("queue") == 5
    assert "the cluster at http://127.0.0.1:1 (context 'here') does not answer" in tool.err
    assert "kubectl config view" in tool.err, "a longer timeout would not help"


async def test_rejected_credentials_name_context(tool: Tool, server: ReviewingApiServer) -> None:
    server.token = "another"
    assert await tool("queue") == 5
    assert "rejects the credentials of context 'here'" in tool.err


async def test_missing_right_names_user_right_and_way_out(tool: Tool, server: ReviewingApiServer) -> None:
    server.rights = rights("other", pods="get list")
    assert await tool("queue", "--context", "here") == 5
    assert f"user 'jane' cannot list pods in namespace 'ns' (cluster {server.url})" in tool.err
    assert "kubectl auth can-i list pods --namespace=ns --context=here" in tool.err
    assert "kubectl create rolebinding NAME -n ns --clusterrole=view --user=jane" in tool.err
    assert await tool("queue", "-A") == 5
    assert "cannot list pods everywhere" in tool.err
    assert "kubectl auth can-i list pods --all-namespaces" in tool.err


async def test_few_rights_suffice_in_own_namespace(tool: Tool, server: ReviewingApiServer) -> None:
    server.rights = rights("ns", pods="get list")
    put(server, pod("train", status=waits("needs more")), pod("else", namespace="other", status=waits("needs more")))
    assert await tool("queue", "-o", "name") == 0, tool.err
    assert tool.out == "ns/train\n"
    assert await tool("explain", "train") == 0, tool.err
    assert "needs more" in tool.out


@pytest.mark.parametrize(
    ("method", "path", "question"),
    [
        ("GET", "/api/v1/pods", "list pods --all-namespaces"),
        ("GET", "/api/v1/namespaces/a%2Fb/pods/p/log", "get pods/p --subresource=log --namespace=a/b"),
        ("GET", "/api/v1/namespaces/a", "get namespaces/a"),
        ("GET", "/api/v1/nodes", "list nodes"),
        ("GET", "/apis/vkgateway.io/v1alpha1/tenants", "list tenants.vkgateway.io"),
        ("POST", "/api/v1/namespaces/a/serviceaccounts/s/token", "create serviceaccounts/s --subresource=token "),
        ("GET", "/version", "get /version"),
    ],
)
def test_right_follows_from_request(method: str, path: str, question: str) -> None:
    assert right_of_request(method, path).question.startswith(question)


@pytest.mark.parametrize(
    ("user", "right", "grant"),
    [
        ("jane", Right(verb="list", resource="nodes", namespaced=False), "create clusterrole nodes-viewer"),
        ("system:serviceaccount:a:b", Right(verb="list", resource="pods"), "--serviceaccount=a:b"),
        ("jane", Right(verb="list", resource="tenants", group="vkgateway.io", namespaced=False), "vkgateway-viewer"),
        ("jane", Right(verb="get", resource="leases", namespace="vkgateway-system"), "--role=vkgateway-state-reader"),
        ("jane", Right(verb="get", resource="pods", namespace="vkgateway-system", subresource="log"), "view"),
    ],
)
def test_grant_names_a_role_with_the_right(user: str, right: Right, grant: str) -> None:
    assert grant in refusal_hint(user, [right])


def test_no_role_is_proposed_for_secrets() -> None:
    assert "grant" not in refusal_hint("jane", [Right(verb="get", resource="secrets", namespace="x")])


async def test_management_cluster_is_recognized(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeApiServer() as management:
        tool.use(monkeypatch, management.url)
        assert await tool("explain", "x") == 2
        assert "no tenant is given" in tool.err
