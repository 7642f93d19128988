"""What API servers of tenants connect to, as an HTTP proxy for each of them at a Unix socket.

A tenant's admin chooses what its API server connects to: webhooks and aggregated APIs behind Services, addresses of
Nodes and pods. So each of these connections goes through a proxy, which admits the gateway, the tenant's pods, and
public addresses that are not this machine's. Connections to etcd and to webhooks by URL do not go through it.
https://kubernetes.io/docs/tasks/extend-kubernetes/setup-konnectivity/
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from vkgateway.controlplane.drivers.base import ServerEndpoint
from vkgateway.model.names import is_ip_address

OwnsAddress = Callable[[str, str], bool]
"""Returns whether a pod of a tenant has an address."""

MOST_CONNECTIONS: Final = 256
"""Connections of one API server at a time."""
MOST_OF_ALL: Final = 2048
"""Connections of all API servers. From half of them on, each has at most an equal share."""
_HEADER_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 20.0
_CHUNK: Final = 32 * 1024
"""Bytes of one read. A connection whose ends do not read holds at most eight times as many."""
_LOOKUPS: Final = 2
"""Names of one tenant that are looked up at a time: a slow server of names must not delay the others'."""
_LOG_SECONDS: Final = 10.0
"""Seconds between two lines in the log about one tenant."""
_log = structlog.get_logger(__name__)


class _RefusedError(Exception):
    """The proxy does not connect. `status` is the status line without the version."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


def socket_name(tenant: str) -> str:
    """Return the path of a tenant's socket, relative to the data directory: a longer one might exceed 107 bytes."""
    return f"run/{hashlib.sha256(tenant.encode()).hexdigest()[:12]}.egress"


class ApiServerEgress:
    """Proxies of all API servers. `gateway` is where they reach the gateway; its port 0 stands for any port."""

    def __init__(self, data_dir: Path, *, gateway: ServerEndpoint) -> None:
        self._data_dir = data_dir
        self._gateway = gateway
        self._proxies: dict[str, _Proxy] = {}
        self._starting = asyncio.Lock()
        self._names = ThreadPoolExecutor(8, thread_name_prefix="egress-names")
        self.owns_address: OwnsAddress = lambda _tenant, _address: False

    async def listen(self, tenant: str) -> None:
        """Start the proxy of a tenant, if it does not run. Raises OSError."""
        async with self._starting:
            if tenant in self._proxies:
                return
            proxy = _Proxy(lambda host, port: self._resolve(tenant, host, port), tenant=tenant, may_open=self._may_open)
            with _short_path(self._data_dir / socket_name(tenant)) as path:
                path.unlink(missing_ok=True)
                await proxy.listen(path)
                path.chmod(0o600)
            self._proxies[tenant] = proxy

    async def stop(self, tenant: str) -> None:
        """Stop the proxy of a tenant."""
        if (proxy := self._proxies.pop(tenant, None)) is not None:
            proxy.close()
        await asyncio.to_thread((self._data_dir / socket_name(tenant)).unlink, missing_ok=True)

    def close(self) -> None:
        """Stop listening; the sockets stay for the next gateway."""
        for proxy in self._proxies.values():
            proxy.close()
        self._proxies.clear()
        self._names.shutdown(wait=False, cancel_futures=True)

    async def _resolve(self, tenant: str, host: str, port: int) -> str:
        """Return the address to connect to. Raises _RefusedError."""
        for address in [host] if is_ip_address(host) else await self._look_up(tenant, host):
            if self._is_gateway(address, port) or self.owns_address(tenant, address) or is_outside(address):
                return address
        raise _RefusedError(
            "403 Forbidden", f"{host}:{port} is neither a pod of this tenant nor a public address of another machine"
        )

    async def _look_up(self, tenant: str, name: str) -> list[str]:
        if (proxy := self._proxies.get(tenant)) is None:
            raise _RefusedError("503 Service Unavailable", "the tenant is being removed")
        loop = asyncio.get_running_loop()
        async with proxy.lookups:
            try:
                found = await loop.run_in_executor(self._names, partial(socket.getaddrinfo, name, None))
            except (OSError, UnicodeError) as error:
                raise _RefusedError("502 Bad Gateway", f"{name} has no address: {error}") from error
        return list(dict.fromkeys(str(where[0]) for *_, where in found))

    def _may_open(self, count: int) -> bool:
        """Return whether an API server may have that many connections."""
        total = sum(proxy.open for proxy in self._proxies.values())
        share = MOST_OF_ALL // max(1, len(self._proxies))
        return count <= (MOST_CONNECTIONS if total <= MOST_OF_ALL // 2 else min(MOST_CONNECTIONS, share))

    def _is_gateway(self, address: str, port: int) -> bool:
        return address == self._gateway.address and self._gateway.port in (0, port)


def is_outside(address: str) -> bool:
    """Return whether an address is public and not one of this machine."""
    parsed = ipaddress.ip_address(address)
    if not parsed.is_global or parsed.is_multicast:
        return False
    family = socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return True
    return False


class _Proxy:
    """Proxy of one API server, which answers CONNECT.

    `resolve` returns the address of a host and port. `may_open` returns whether that many connections are allowed.
    """

    def __init__(
        self, resolve: Callable[[str, int], Awaitable[str]], *, tenant: str, may_open: Callable[[int], bool]
    ) -> None:
        self._resolve = resolve
        self._tenant = tenant
        self._may_open = may_open
        self.open = 0
        """Current connections."""
        self.lookups = asyncio.Semaphore(_LOOKUPS)
        self._silent_until = 0.0
        self._server: asyncio.Server | None = None

    async def listen(self, path: Path) -> None:
        """Listen at a path that does not exist. Raises OSError."""
        self._server = await asyncio.start_unix_server(self._serve, path, limit=_CHUNK)

    def close(self) -> None:
        """Stop listening; open connections continue."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and pass data in both directions until both ends have closed."""
        self.open += 1
        try:
            with contextlib.closing(writer):
                await self._answer(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            self.open -= 1

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEADER_SECONDS):
                header = await reader.readuntil(b"\r\n\r\n")
            if not self._may_open(self.open):
                raise _RefusedError("503 Service Unavailable", f"{self.open} connections are too many")
            host, port = _target(header)
            far_reader, far_writer = await self._connect(await self._resolve(host, port), port)
        except _RefusedError as error:
            self._log_refusal(error)
            writer.write(f"HTTP/1.1 {error.status}\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()
            return
        with contextlib.closing(far_writer):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))

    def _log_refusal(self, error: _RefusedError) -> None:
        """Log a refusal, unless one of the tenant was logged just before: its admin decides how many there are."""
        now = asyncio.get_running_loop().time()
        if now >= self._silent_until:
            self._silent_until = now + _LOG_SECONDS
            _log.warning("connection of an API server refused", tenant=self._tenant, why=str(error))

    async def _connect(self, address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await asyncio.open_connection(address, port, limit=_CHUNK)
        except (OSError, TimeoutError) as error:
            raise _RefusedError("502 Bad Gateway", f"{address}:{port} does not answer: {error}") from error


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass data on until its end, or until one side breaks, which then ends the other direction, too."""
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


def _target(header: bytes) -> tuple[str, int]:
    """Return host and port of a CONNECT request (RFC 9110, section 9.3.6). Raises _RefusedError."""
    method, _, rest = header.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    host, _, port = rest.partition(" ")[0].rpartition(":")
    if method != "CONNECT" or not host or not port.isdecimal():
        raise _RefusedError("400 Bad Request", "the request is no CONNECT with host and port")
    return host.strip("[]"), int(port)


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[Path]:
    """Yield a path of the same file whose length does not depend on its directory: a socket's has at most 107 bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
