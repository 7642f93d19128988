"""A hollow pool that shrinks loses its surplus nodes, and no others."""

import copy

from tests.fakes.apiserver import FakeApiServer
from vkgateway.kube.resources import NODES
from vkgateway_platform.embedded.hollow.nodes import POOL_LABEL, hollow_nodes
from vkgateway_platform.embedded.hollow.steps import remove_surplus


async def test_only_surplus_nodes_are_deleted() -> None:
    by_hand = copy.deepcopy(next(hollow_nodes({"a100": 1}, version="1.36.3")))
    by_hand["metadata"]["name"] = "a100-extra"
    real = {"metadata": {"name": "a100-9", "labels": {POOL_LABEL: "a100"}}}
    async with FakeApiServer() as server, server.client() as client:
        for node in (*hollow_nodes({"a100": 5, "v100": 2}, version="1.36.3"), by_hand, real):
            server.store.create(NODES, node)
        first = await remove_surplus(client, {"a100": 2, "v100": 2})
        second = await remove_surplus(client, {"a100": 2, "v100": 2})
        left = {node["metadata"]["name"] for node in server.store.all(NODES)}
    assert (first, second) == (["a100-2", "a100-3", "a100-4"], [])
    assert left == {"a100-0", "a100-1", "v100-0", "v100-1", "a100-extra", "a100-9"}
