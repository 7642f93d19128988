"""The page over HTTP, as a browser uses it: sign-in with real tokens, documents of each reader, and a restart."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.cluster import Cluster, Document, Platform, eventually, pod_manifest
from tests.e2e.page import Browser, open_page
from tests.support.machine import patience

WAITING, OTHERS = "waits-for-ever", "secret-of-beta"
"""Names of pods of alpha and beta, some of which wait."""


def big_pod(name: str) -> Document:
    """Return a pod that uses most of a node: a few of them fill the pool."""
    resources = {"limits": {"nvidia.com/gpu": "7"}}
    return pod_manifest(
        name,
        container={"resources": resources},
        nodeSelector={"vkgateway.io/pool": "a100"},
        tolerations=[{"operator": "Exists"}],
    )


Opened = Callable[..., Browser]
"""Opens the page of a tenant, or that of the platform."""


@pytest.fixture
def opened(platform: Platform) -> Iterator[Opened]:
    with contextlib.ExitStack() as stack:

        def open_in_browser(tenant: str = "") -> Browser:
            options = ("--tenant", tenant) if tenant else ()
            return stack.enter_context(open_page(platform, *options))

        yield open_in_browser


@pytest.fixture(scope="module")
def pods(alpha: Cluster, beta: Cluster) -> Iterator[None]:
    for cluster, prefix in ((alpha, WAITING), (beta, OTHERS)):
        cluster.apply(*(big_pod(f"{prefix}-{number}") for number in range(5)))
    yield
    for cluster in (alpha, beta):
        cluster.kubectl("delete", "pods", "--all", "--wait=false")


def test_operators_see_all_tenants(opened: Opened, pods: None) -> None:
    browser = opened()
    assert browser.read("")[0] == 200, "files need no session"
    assert browser.read("api/state")[0] == 401
    with pytest.raises(urllib.error.HTTPError, match="421"):  # at 127.0.0.1, where forwarded ports of pods are, too
        urllib.request.urlopen(browser.root, timeout=patience(30))
    assert browser.sign_in() == 200

    def full_pool() -> Document | None:
        """Return the document once gangs of both tenants wait, and others run."""
        state = browser.state()
        runs = any(row["parts"] for row in state["nodes"].values())
        return state if runs and waiting_in(state) >= {"alpha", "beta"} else None

    state = eventually(full_pool, what="gangs of both tenants")
    assert state is not None
    assert {name.partition("/")[0] for name in state["nodes"]} == {"local"}
    assert {"alpha", "beta"} <= state["controlPlanes"].keys()
    assert state["clusters"]["local"]["conditions"]


def waiting_tenants(browser: Browser) -> set[str]:
    return waiting_in(browser.state())


def waiting_in(state: Document) -> set[str]:
    """Return the tenants of the gangs that wait."""
    return {gang["tenant"] for gang in state["gangs"].values() if gang["state"] == "waiting"}


def test_a_tenant_sees_its_gangs_and_nothing_of_others(platform: Platform, opened: Opened, pods: None) -> None:
    browser = opened("alpha")
    assert browser.sign_in() == 200

    def explained() -> Document | None:
        """Return the document once a gang that waits has a reason."""
        state = browser.state()
        waiting = (gang for gang in state["gangs"].values() if gang["state"] == "waiting")
        return state if any(gang["message"] and gang["help"] for gang in waiting) else None

    state = eventually(explained, what="a gang of alpha waits")
    assert state is not None
    waiting = [gang for gang in state["gangs"].values() if gang["state"] == "waiting"]
    assert {gang["tenant"] for gang in waiting} == {"alpha"}
    assert all(WAITING in gang["name"] for gang in waiting)
    assert {row["name"] for row in state["nodes"].values()} == nodes_of(platform.tenant("alpha"))
    text = json.dumps([state, browser.read("api/history")[1], browser.read("api/usage")[1]])
    assert OTHERS not in text
    assert "beta" not in text
    compute_nodes = {node["metadata"]["name"] for node in platform.compute.get("nodes")["items"]}
    assert not [name for name in compute_nodes if f'"{name}"' in text]


def nodes_of(cluster: Cluster) -> set[str]:
    """Return the names of a tenant's virtual nodes with devices."""
    nodes = cluster.get("nodes")["items"]
    return {node["metadata"]["name"] for node in nodes if any("/" in name for name in node["status"]["capacity"])}


def test_tokens_open_the_page_of_their_own_cluster_only(opened: Opened, alpha: Cluster, beta: Cluster) -> None:
    own = opened("alpha")
    for tenant in ("beta", "", "no-such-tenant"):
        assert own.sign_in(tenant=tenant) == 401
    operator = opened()
    assert operator.sign_in(tenant="alpha") == 401
    assert operator.sign_in(token="") == 401


def test_the_right_to_view_opens_the_page(opened: Opened, alpha: Cluster) -> None:
    alpha.kubectl("create", "serviceaccount", "page-viewer")
    token = alpha.kubectl("create", "token", "page-viewer").strip()
    browser = opened("alpha")
    assert browser.sign_in(token=token) == 403
    alpha.kubectl(
        "create", "clusterrolebinding", "page-viewer", "--clusterrole=view", "--serviceaccount=default:page-viewer"
    )
    eventually(lambda: browser.sign_in(token=token) == 200, seconds=60, what="the right is known")
    assert browser.state()["scope"] == "tenant"
    alpha.kubectl("delete", "serviceaccount", "page-viewer")
    eventually(lambda: browser.read("api/state")[0] == 401, seconds=120, what="the session ends with the account")


def test_a_user_of_a_namespace_sees_its_gangs_only(opened: Opened, alpha: Cluster, pods: None) -> None:
    alpha.create_namespace("research")
    alpha.kubectl("create", "serviceaccount", "researcher", "--namespace=research")
    alpha.kubectl(
        "create",
        "rolebinding",
        "page",
        "--clusterrole=view",
        "--serviceaccount=research:researcher",
        "--namespace=research",
    )
    pod = big_pod("theirs")
    pod["metadata"]["namespace"] = "research"
    alpha.apply(pod)
    browser = opened("alpha")
    token = alpha.kubectl("create", "token", "researcher", "--namespace=research").strip()
    eventually(lambda: browser.sign_in(token=token) == 200, seconds=60, what="the right is found")
    eventually(lambda: [gang["name"] for gang in browser.state()["gangs"].values()] == ["theirs"], what="its gang")
    text = json.dumps(browser.state())
    assert WAITING not in text
    assert OTHERS not in text
    assert browser.read("api/usage")[0] == 403
    alpha.kubectl("delete", "rolebinding", "page", "--namespace=research")
    eventually(lambda: browser.read("api/state")[0] == 403, seconds=120, what="the session ends with the right")
    alpha.kubectl("delete", "namespace", "research", "--wait=false")


def test_a_session_outlives_the_gateway(platform: Platform, opened: Opened, pods: None) -> None:
    browser = opened("alpha")
    assert browser.sign_in() == 200
    platform.kill_gateway()
    eventually(lambda: browser.read("api/state")[0] == 200, seconds=120, what="the page answers again")
    eventually(lambda: "alpha" in waiting_tenants(browser), what="with the gangs")
