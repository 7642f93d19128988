"""What a pod costs, in requests, bytes and watch events: exact numbers, which no machine changes.

`costs.yaml` has the numbers. A change that adds a write, a watch or an annotation must change a number there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from bench.load import Place
from bench.pods import RUN_LABEL, PodKind, gang_marks
from bench.servercounts import ServerCounts, read_counts
from tests.e2e.cluster import COMPUTE_VERSION, TENANT_VERSION, Platform, frozen
from tests.e2e.conftest import start_platform
from tests.support.machine import patience
from vkgateway.kube.client import Client
from vkgateway.kube.resources import PODS, SERVICES

pytestmark = pytest.mark.skipif(bool(COMPUTE_VERSION or TENANT_VERSION), reason="releases differ in their watches")

NUMBERS: Final = yaml.safe_load(Path(__file__).with_name("costs.yaml").read_text())
GANG: Final = 8
CASES: Final = {
    "plain": (50, [PodKind(run="plain")]),
    "token": (50, [PodKind(run="token", token=True)]),
    "gang": (
        GANG,
        [PodKind(run=f"gang-{one}", gpus=1, annotations=gang_marks(one, GANG), restart="Never") for one in "abcd"],
    ),
}
"""The number of pods of each kind, and the kinds."""
FIRST: Final = PodKind(run="first", token=True)
"""The first pod, for which the gateway creates the namespace in the compute cluster. It stays, so that this does."""
QUIET_SECONDS: Final = 3.0
"""Time without a write, after which a phase has ended, if it counted what is expected."""
SERVICE_ADDRESSES: Final = 5
"""How often a compute pod contains the address of its tenant's API server, whose length varies."""
Numbers = dict[str, dict[str, dict[str, int]]]
"""By server, by kind of count, by request or resource."""


@dataclass(frozen=True)
class Servers:
    """API servers of a tenant and of its compute cluster, as their admins connect."""

    tenant: Client
    compute: Client

    async def read(self) -> dict[str, ServerCounts]:
        """Return what both servers counted."""
        return {"tenant": await read_counts(self.tenant), "compute": await read_counts(self.compute)}

    async def settle(self, is_complete: Callable[[dict[str, ServerCounts]], bool]) -> dict[str, ServerCounts]:
        """Return what both servers counted, once they count no further write.

        While something is missing, it waits longer: a busy machine may do nothing for seconds.
        """
        seen, began = await self.read(), time.monotonic()
        while True:
            await asyncio.sleep(QUIET_SECONDS)
            now = await self.read()
            is_quiet = all(now[name].writes() == seen[name].writes() for name in now)
            if is_quiet and (is_complete(now) or time.monotonic() - began > patience(20)):
                return now
            seen = now

    async def pods(self) -> list[dict[str, Any]]:
        """Return the tenant's pods."""
        page = await self.tenant.list_all(PODS, namespace="default")
        return [msgspec.json.decode(bytes(item)) for item in page.items]

    async def create(self, count: int, kinds: list[PodKind]) -> None:
        """Create this number of pods of each kind at once."""
        place = Place("tenant", self.tenant, "default")
        await asyncio.gather(
            *(place.create_pod(f"{kind.run}-{number:02d}", kind) for kind in kinds for number in range(count))
        )

    async def wait_ready(self) -> list[str]:
        """Wait until all pods are ready, and return the addresses of all but the first."""
        ready = await self._wait(lambda pods: all(map(is_ready, pods)))
        return [pod["status"]["podIP"] for pod in ready if not is_first(pod)]

    async def start_first(self, before: dict[str, ServerCounts]) -> dict[str, ServerCounts]:
        """Start the first pod, and return the counts when all is written, the events of the schedulers too."""
        await self.create(1, [FIRST])
        await self.wait_ready()
        event = "POST events"
        return await self.settle(lambda now: all(now[who].requests[event] > before[who].requests[event] for who in now))

    async def delete_others(self) -> None:
        """Delete all pods but the first as a user does, and wait until they are gone."""
        place = Place("tenant", self.tenant, "default")
        others = [pod["metadata"]["name"] for pod in await self.pods() if not is_first(pod)]
        await asyncio.gather(*map(place.delete_pod, others))
        await self._wait(lambda pods: all(map(is_first, pods)))

    async def _wait(self, condition: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Return the tenant's pods once they fulfil a condition. A watch would count as one more."""
        async with asyncio.timeout(patience(60)):
            while True:
                if condition(pods := await self.pods()):
                    return pods
                await asyncio.sleep(0.5)


def is_first(pod: dict[str, Any]) -> bool:
    """Return whether it is the first pod."""
    return bool(pod["metadata"]["labels"][RUN_LABEL] == FIRST.run)


def is_ready(pod: dict[str, Any]) -> bool:
    """Return whether the pod's condition Ready is true."""
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


@pytest.fixture(scope="module")
def quiet() -> Iterator[Platform]:
    """Yield a platform on which nothing else happens, with one tenant."""
    with start_platform("--real-node", "no", "--hollow-nodes", "a100=4") as platform:
        platform.vkgateway("tenant", "create", "costs", "--pool", "a100")
        yield platform


@asynccontextmanager
async def connect(platform: Platform) -> AsyncIterator[Servers]:
    clients = [Client.from_kubeconfig(one.kubeconfig) for one in (platform.tenant("costs"), platform.compute)]
    try:
        yield Servers(*clients)
    finally:
        for client in clients:
            await client.close()


def numbers(now: dict[str, ServerCounts], since: dict[str, ServerCounts], pods: int) -> Numbers:
    """Return the numbers of the phase between two counts for each pod, without those that are the nodes' own.

    KWOK may write the status of a pod again after its watch broke.
    """
    found = {who: server_numbers(now[who] - since[who], pods) for who in now}
    found["compute"]["writes"].pop("PATCH pods/status", None)
    return found


def server_numbers(counts: ServerCounts, pods: int) -> dict[str, dict[str, int]]:
    """Return the numbers of one server in a phase for each pod.

    Counts that are no multiple of the number of pods are those of all pods, so that nothing is lost by rounding. Only
    watch events are rounded, because servers also count bookmarks.
    """
    return {
        "writes": {
            key: count // pods if count % pods == 0 else count
            for key, count in counts.writes().items()
            if not key.endswith(" configmaps")  # the gateway's records of usage and history, once in a while
        },
        "reads": {key: counts.requests[key] for key in ("GET pods", "GET secrets") if counts.requests[key]},
        "watch events": {key: found for key in ("pods", "secrets") if (found := counts.watch_events[key] // pods)},
    }


def sizes(
    ready: dict[str, ServerCounts], before: dict[str, ServerCounts], *, addresses: list[str], service: str
) -> dict[str, int]:
    """Return the bytes of what the gateway writes for each pod until it is ready, without those of addresses."""
    tenant, compute = (ready[who].bytes_in - before[who].bytes_in for who in ("tenant", "compute"))
    pods = len(addresses)
    found = {
        # The status contains the pod's address twice.
        "tenant PATCH pods": tenant["PATCH pods"] // pods - 2 * sum(map(len, addresses)) // pods,
        "compute POST pods": compute["POST pods"] // pods - SERVICE_ADDRESSES * len(service),
        "compute POST secrets": compute["POST secrets"] // pods,
    }
    return {key: size for key, size in found.items() if size}


async def test_new_tenant_serves_no_openapi_document(quiet: Platform) -> None:
    """Its API server would build them for a second of CPU, if a controller asked."""
    async with connect(quiet) as servers:
        counts = (await servers.settle(lambda _: True))["tenant"]
    assert counts.requests["GET openapi/v3/"] == 0


@pytest.mark.parametrize("case", CASES)
async def test_pod_costs_what_is_recorded(quiet: Platform, case: str) -> None:
    each, kinds = CASES[case]
    count = each * len(kinds)
    gateway = await asyncio.to_thread(quiet.pid_of, "gateway")
    async with connect(quiet) as servers:
        service = msgspec.json.decode(await servers.tenant.get(SERVICES, "kubernetes", namespace="default"))
        before = await servers.settle(lambda _: True)
        if not await servers.pods():
            before = await servers.start_first(before)

        def ready_numbers(now: dict[str, ServerCounts]) -> Numbers:
            return numbers(now, before, count)

        # The gateway sees all pods at once then, and reports to no pod that its gang waits.
        with frozen(gateway):
            await servers.create(each, kinds)
        addresses = await servers.wait_ready()
        ready = await servers.settle(lambda now: ready_numbers(now) == NUMBERS[case]["ready"])

        def gone_numbers(now: dict[str, ServerCounts]) -> Numbers:
            ended = numbers(now, ready, count)
            # Node and gateway end a compute pod together: whose write is the first changes the number of events.
            del ended["compute"]["watch events"]
            return ended

        await servers.delete_others()
        gone = await servers.settle(lambda now: gone_numbers(now) == NUMBERS[case]["gone"])
    found = {
        "ready": ready_numbers(ready),
        "gone": gone_numbers(gone),
        "bytes": sizes(ready, before, addresses=addresses, service=service["spec"]["clusterIP"]),
    }
    assert found == NUMBERS[case], f"\n{yaml.safe_dump({case: found})}"
