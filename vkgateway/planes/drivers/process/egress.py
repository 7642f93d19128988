"""What API servers of tenants connect to, as an HTTP proxy for each of them at Unix sockets.

A tenant's admin chooses what its API server connects to: webhooks and aggregated APIs behind Services, webhooks by URL,
addresses of Nodes and pods. So each of these connections goes through a proxy, which admits the gateway, the tenant's
pods, and public addresses that are not this machine's. Webhooks by URL have a separate socket, and may also have
addresses in ranges that the settings open: there, an API server sends reviews, and not requests that the admin writes.
Connections to etcd do not go through the proxy.
https://kubernetes.io/docs/tasks/extend-kubernetes/setup-konnectivity/
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from vkgateway.api.names import is_ip_address
from vkgateway.kinds.policies.translation import NODE_ADDRESSES
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.webhook_ranges import Address, Network, opens_address

HasAddress = Callable[[str, str], bool]
"""Returns whether a pod of a tenant, or of another tenant, has an address."""
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses to connect to for a host and port, at least one. Raises _RefusedError."""

MOST_CONNECTIONS: Final = 256
"""Connections of one API server at a time."""
MOST_OF_ALL: Final = 2048
"""Connections of all API servers. From half of them on, each has at most an equal share."""
_HEADER_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 20.0
"""Time for all addresses of a name together."""
_MOST_ADDRESSES: Final = 4
"""Addresses of a name that are tried."""
_CHUNK: Final = 32 * 1024
"""Bytes of one read. A connection whose ends do not read holds at most eight times as many."""
_LOOKUPS: Final = 2
"""Names of one tenant that are looked up at a time: a slow server of names must not delay the others'."""
_LOG_SECONDS: Final = 10.0
"""Seconds between two lines in the log about one tenant."""
_log = structlog.get_logger(__name__)


class _RefusedError(Exception):
    """The proxy does not connect. The log shows `target`; the API server shows `status` and `reason` to its users."""

    def __init__(self, status: str, reason: str, *, target: str = "") -> None:
        super().__init__(f"{target} {reason}" if target else reason)
        self.status_line = f"HTTP/1.1 {status}: {reason}"


def socket_name(tenant: str) -> str:
    """Return the path of a tenant's socket for Services, nodes and pods, relative to the data directory.

    It is short, whatever the tenant's name: the path of a socket has at most 107 bytes.
    """
    return f"run/{_short_name(tenant)}.egress"


def webhook_socket_name(tenant: str) -> str:
    """Return the path of a tenant's socket for webhooks by URL, relative to the data directory."""
    return f"run/{_short_name(tenant)}.webhooks"


def _short_name(tenant: str) -> str:
    return hashlib.sha256(tenant.encode()).hexdigest()[:12]


class ApiServerEgress:
    """Proxies of all API servers. `gateway` is where they reach the gateway, by address or name.

    Its port 0 stands for any port, but not for webhooks by URL: the gateway is none without a fixed port. These may
    also have addresses in `webhook_ranges`.
    """

    def __init__(self, data_dir: Path, *, gateway: ServerEndpoint, webhook_ranges: Sequence[Network] = ()) -> None:
        self._data_dir = data_dir
        self._gateway = gateway
        self._webhook_ranges = tuple(webhook_ranges)
        self._proxies: dict[str, _Proxy] = {}
        self._starting = asyncio.Lock()
        self._names = ThreadPoolExecutor(8, thread_name_prefix="egress-names")
        self.owns_address: HasAddress = lambda _tenant, _address: False
        self.is_of_other_tenant: HasAddress = lambda _tenant, _address: False

    async def listen(self, tenant: str) -> None:
        """Start the proxy of a tenant, if it does not run. Raises OSError."""
        async with self._starting:
            if tenant in self._proxies:
                return
            proxy = _Proxy(tenant=tenant, may_open=self._may_open)
            try:
                for name, by_url in ((socket_name(tenant), False), (webhook_socket_name(tenant), True)):
                    with _short_path(self._data_dir / name) as path:
                        path.unlink(missing_ok=True)
                        await proxy.listen(path, resolve=partial(self._resolve, tenant, by_url=by_url))
                        path.chmod(0o600)
            except OSError:
                proxy.close()
                raise
            self._proxies[tenant] = proxy

    async def stop(self, tenant: str) -> None:
        """Stop the proxy of a tenant."""
        if (proxy := self._proxies.pop(tenant, None)) is not None:
            proxy.close()
        for name in (socket_name(tenant), webhook_socket_name(tenant)):
            await asyncio.to_thread((self._data_dir / name).unlink, missing_ok=True)

    def close(self) -> None:
        """Stop listening; the sockets stay for the next gateway."""
        for proxy in self._proxies.values():
            proxy.close()
        self._proxies.clear()
        self._names.shutdown(wait=False, cancel_futures=True)

    async def _resolve(self, tenant: str, host: str, port: int, *, by_url: bool) -> Sequence[str]:
        """Return the permitted addresses of a host. No name is resolved again later. Raises _RefusedError."""
        found = [host] if is_ip_address(host) else await self._find_addresses(tenant, host)
        is_gateway = self._gateway.port in ((port,) if by_url else (port, 0))
        permitted = [
            address
            for address in map(str, map(canonical_address, found))
            if (is_gateway and self._gateway.address in (host, address))
            or self._may_reach(tenant, address, by_url=by_url)
        ]
        if permitted:
            return permitted[:_MOST_ADDRESSES]
        reason = "is neither a pod of this tenant nor a public address of another machine"
        if by_url:
            reason = f"{reason}, and not in the gateway's setting controlPlanes.webhookRanges"
        raise _RefusedError("403 Forbidden", reason, target=f"{host}:{port}")

    def _may_reach(self, tenant: str, address: str, *, by_url: bool) -> bool:
        if self.owns_address(tenant, address):
            return True
        if self.is_of_other_tenant(tenant, address):
            return False
        return is_outside(address) or (by_url and is_in_ranges(address, self._webhook_ranges))

    async def _find_addresses(self, tenant: str, name: str) -> list[str]:
        if (proxy := self._proxies.get(tenant)) is None:
            raise _RefusedError("503 Service Unavailable", "the tenant is being removed")
        loop = asyncio.get_running_loop()
        async with proxy.lookups:
            try:
                found = await loop.run_in_executor(self._names, partial(socket.getaddrinfo, name, None))
            except (OSError, UnicodeError) as error:
                raise _RefusedError("502 Bad Gateway", "has no address", target=name) from error
        return list(dict.fromkeys(str(where[0]) for *_, where in found))

    def _may_open(self, count: int) -> bool:
        """Return whether an API server may have that many connections."""
        total = sum(proxy.open for proxy in self._proxies.values())
        share = MOST_OF_ALL // max(1, len(self._proxies))
        return count <= (MOST_CONNECTIONS if total <= MOST_OF_ALL // 2 else min(MOST_CONNECTIONS, share))


class _Proxy:
    """Proxy of one API server, which answers CONNECT.

    `may_open` returns whether that many connections are allowed.
    """

    def __init__(self, *, tenant: str, may_open: Callable[[int], bool]) -> None:
        self._tenant = tenant
        self._may_open = may_open
        self.open = 0
        """Current connections."""
        self.lookups = asyncio.Semaphore(_LOOKUPS)
        self._silent_until = 0.0
        self._servers: list[asyncio.Server] = []

    async def listen(self, path: Path, *, resolve: Resolve) -> None:
        """Listen also at a path that does not exist. Raises OSError."""
        self._servers.append(await asyncio.start_unix_server(partial(self._serve, resolve), path, limit=_CHUNK))

    def close(self) -> None:
        """Stop listening; open connections continue."""
        for server in self._servers:
            server.close()

    async def _serve(self, resolve: Resolve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and pass data in both directions until both ends have closed."""
        self.open += 1
        try:
            with contextlib.closing(writer):
                await self._answer(resolve, reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            self.open -= 1

    async def _answer(self, resolve: Resolve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEADER_SECONDS):
                header = await reader.readuntil(b"\r\n\r\n")
            if not self._may_open(self.open):
                raise _RefusedError("503 Service Unavailable", f"{self.open} connections are too many")
            host, port = _target(header)
            far_reader, far_writer = await self._connect(await resolve(host, port), port)
        except _RefusedError as error:
            self._log_refusal(error)
            writer.write(f"{error.status_line}\r\nContent-Length: 0\r\n\r\n".encode())
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

    async def _connect(self, addresses: Sequence[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address that answers."""
        reason = ""
        for address in addresses:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS / len(addresses)):
                    return await asyncio.open_connection(address, port, limit=_CHUNK)
            except OSError as error:
                reason = os.strerror(error.errno).lower() if error.errno else "timeout"
        target = f"{', '.join(addresses)}, port {port}"
        raise _RefusedError("502 Bad Gateway", f"does not answer: {reason}", target=target)


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


_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv4 addresses for machines without IPv4 (RFC 6052)."""
_CLOUD: Final = tuple(
    ipaddress.ip_network(cidr) for cidr in (*NODE_ADDRESSES[4], *NODE_ADDRESSES[6], "168.63.129.16/32")
)
"""Addresses at which clouds answer for a machine. Azure's is public."""


def canonical_address(text: str) -> Address:
    """Return an IP address in the form in which it is dialled: an IPv4-mapped one is IPv4. Raises ValueError."""
    parsed = ipaddress.ip_address(text)
    return (parsed.version == 6 and parsed.ipv4_mapped) or parsed


def is_outside(text: str) -> bool:
    """Return whether an address is public and not one of this machine."""
    address = canonical_address(text)
    inner = _translated_address(address)
    return all(_is_public(one) and not _is_own(one) for one in (address, inner) if one is not None)


def is_in_ranges(text: str, ranges: Sequence[Network]) -> bool:
    """Return whether one of these ranges opens an address for webhooks by URL."""
    address = canonical_address(text)
    holding = [network for network in ranges if address in network]
    return any(opens_address(network, address, is_own=_is_own(address)) for network in holding)


def _is_own(address: Address) -> bool:
    """Return whether this machine has an address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _is_public(address: Address) -> bool:
    if not address.is_global or address.is_multicast or any(address in cloud for cloud in _CLOUD):
        return False
    if address.version == 4 or address in _NAT64:
        return True
    return not (address.is_site_local or address.is_reserved)


def _translated_address(address: Address) -> Address | None:
    """Return the IPv4 address to which the network may translate an IPv6 address (NAT64, 6to4); None for others."""
    if address.version == 4:
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour
