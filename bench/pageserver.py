"""Gateway behind the page in a separate process, with decisions of the real arbiter.

Each line of standard input is a JSON command, and each gets one line of JSON on standard output.
"""

from __future__ import annotations

import asyncio
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any, Final

import msgspec
import uvloop

from tests.fakes.page_gateway import A100, NODE_GPUS, FakeGateway, gpus, make_cluster, make_gang, make_pool, make_tenant
from vkgateway.nodes.listener import HttpListener
from vkgateway.nodes.token_reviewer import TokenReviewer
from vkgateway.page.access import PageAccess
from vkgateway.page.cookies import CookieSealer
from vkgateway.page.documents import Document
from vkgateway.page.facts import build_facts
from vkgateway.page.handler import PageHandler
from vkgateway.page.hub import LEVEL, PageHub, encode_delta
from vkgateway.page.static_files import load_files
from vkgateway.page.views import Facts, platform_document, tenant_document
from vkgateway.scheduler.core.snapshot import Quota
from vkgateway.serve import logs
from vkgateway.settings.config import Logging

TENANT: Final = "alpha"
TOKEN: Final = "token"
_OTHERS: Final = ("beta", "gamma", "delta")
_USAGE: Final = b'{"days": []}'
_STARTS: Final = b'{"pools": [], "images": []}'


class _ApiServer:
    """API server that knows each token, and allows everything."""

    name = "server"

    async def request(self, _: str, path: str, **__: Any) -> bytes:
        if path.endswith("tokenreviews"):
            return msgspec.json.encode({"status": {"authenticated": True, "user": {"username": "jane"}}})
        return msgspec.json.encode({"status": {"allowed": True}})


def make_gateway(gangs: int, nodes: int) -> FakeGateway:
    """Return a gateway with gangs of one tenant, half of which borrow and a part of which wait, and some of others."""
    gateway = FakeGateway(
        pools=(make_pool(nodes),) if nodes else (),
        quotas=(Quota(tenant=TENANT, pool=A100, guarantee=gpus(nodes * NODE_GPUS // 2)),) if nodes else (),
        tenants={name: make_tenant(name) for name in (TENANT, *_OTHERS)},
        compute_clusters={"local": make_cluster()},
    )
    gateway.add_gangs(
        make_gang(tenant, f"train-{number}", each=2) for tenant in _OTHERS for number in range(min(100, gangs // 100))
    )
    gateway.add_gangs(make_gang(TENANT, f"train-{number}", each=1) for number in range(gangs))
    gateway.run_cycle()
    gateway.run_cycle()
    return gateway


class Server:
    """Page of a gateway on a loopback port."""

    def __init__(self, gateway: FakeGateway) -> None:
        self.gateway = gateway
        self._sealer = CookieSealer(b"secret")
        self._started = len(gateway.gangs)
        self.hub = PageHub(gateway)
        self.handler = PageHandler(
            access=PageAccess(TokenReviewer(lambda _: _ApiServer()), self._sealer, secure=False),  # type: ignore[arg-type, return-value]
            sealer=self._sealer,
            hub=self.hub,
            source=gateway,
            files=load_files(),
            usage=lambda _, __: _USAGE,
            starts=lambda: _STARTS,
            secure=False,
        )

    def sessions(self) -> dict[str, tuple[str, str]]:
        """Return cookie and key of an operator, and those of a user of the tenant."""
        sealed = {tenant: self._sealer.seal(TOKEN, tenant) for tenant in ("", TENANT)}
        return {tenant: (value, credentials.key) for tenant, (value, credentials) in sealed.items()}

    def change(self, gangs: int) -> dict[str, int]:
        """End running gangs, start as many new ones, and return the number of rows of the platform that change."""
        before = self._document("")
        ended = [gang.id for gang in self.gateway.gangs.values() if gang.pods[0].node and gang.tenant == TENANT][:gangs]
        for each in ended:
            self.gateway.remove_gang(each)
        self.gateway.add_gangs(
            make_gang(TENANT, f"train-{self._started + number}", each=1, created=self.gateway.now)
            for number in range(gangs)
        )
        self._started += gangs
        self.gateway.run_cycle()
        delta = msgspec.json.decode(encode_delta(before, self._document("")) or b"{}")
        return {kind: sum(len(rows) for rows in delta.get(kind, {}).values()) for kind in ("set", "change", "remove")}

    def costs(self, tenant: str) -> dict[str, float]:
        """Return milliseconds of CPU of each step to build a document, and its size in bytes, plain and compressed."""
        found: dict[str, float] = {}

        def timed(name: str, act: Callable[[], Any]) -> Any:
            started = time.thread_time()
            result = act()
            found[name] = 1000 * (time.thread_time() - started)
            return result

        facts = timed("facts", self._facts)
        document: Document = timed("document", lambda: _build(facts, tenant))
        plain: bytes = timed("encode", document.encode)
        zipped: bytes = timed("compress", lambda: zlib.compress(plain, LEVEL))
        timed("compare", lambda: encode_delta(document, _build(self._facts(), tenant)))
        return {**found, "plain": len(plain), "zipped": len(zipped)}

    def _facts(self) -> Facts:
        return build_facts(self.gateway.observe(), self.gateway.pod_names())

    def _document(self, tenant: str) -> Document:
        return _build(self._facts(), tenant)


def _build(facts: Facts, tenant: str) -> Document:
    return tenant_document(facts, tenant) if tenant else platform_document(facts)


async def serve(gangs: int, nodes: int) -> None:
    """Serve until standard input ends."""
    server = Server(make_gateway(gangs, nodes))
    refresh = asyncio.create_task(server.hub.run())
    async with HttpListener(server.handler, name="page", connections=256) as listener:
        port = await listener.listen_tcp("127.0.0.1", 0)
        _say({"port": port, "sessions": server.sessions()})
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = msgspec.json.decode(line, type=dict[str, Any])
            if "change" in command:
                _say(await asyncio.to_thread(server.change, command["change"]))
            elif "costs" in command:
                _say(server.costs(command["costs"]))
            else:
                # Of this thread, which serves readers: others build and compress the same for any number of readers.
                _say({"cpu": time.thread_time()})
    refresh.cancel()


def _say(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logs.configure_logging(Logging(level="warning"))  # to standard error
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
