"""Connection to an etcd cluster over gRPC with TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc

from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.etcd.endpoints import ClientTls, grpc_targets
from vkgateway.planes.etcd.errors import EtcdStale, EtcdUnavailable, error_for
from vkgateway.planes.etcd.pb import etcd_pb2 as pb

LONGEST_CALL_SECONDS: Final = 300.0
"""Timeout of compaction and defragmentation, which process the whole store."""
_STALE_ATTEMPTS: Final = 10
"""Attempts of a call that fails because users or roles change at the same time; each takes milliseconds."""
_OPTIONS = (
    # Reconnect within seconds after etcd returns; gRPC's default waits up to two minutes between attempts.
    ("grpc.max_reconnect_backoff_ms", 2000),
    # The time limit of an attempt, despite its name. A busy etcd or machine needs time for TLS.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_receive_message_length", 64 << 20),
    # Connect directly, as tenants' API servers do. gRPC would use any proxy in the environment, also for loopback.
    ("grpc.enable_http_proxy", 0),
)


_READS: Final = frozenset({"KV/Range"})
_READ_ENDINGS: Final = ("List", "Get", "Status")
_UPKEEP: Final = ("Maintenance/", "KV/Compact", "Auth/RoleGrantPermission", "Auth/RoleRevokePermission")
"""Calls that keep space in the store, and may be repeated by any process."""


class EtcdConnection:
    """Channels to the endpoints of an etcd cluster; each call tries every endpoint once.

    `gate` permits calls that change the store; None: always.
    """

    def __init__(
        self, endpoints: Sequence[str], *, tls: ClientTls, timeout: float, gate: WriteGate | None = None
    ) -> None:
        self.targets = grpc_targets(endpoints)
        self._timeout = timeout
        self._gate = gate
        self._channels = self._open_channels(tls)
        self._closing_channels: dict[asyncio.Task[None], grpc.aio.Channel] = {}
        """Replaced channels that still have calls in progress."""

    async def close(self) -> None:
        former = dict(self._closing_channels)
        for task in former:
            task.cancel()
        await asyncio.gather(*former, return_exceptions=True)
        for channel in (*former.values(), *self._channels.values()):
            await channel.close(grace=None)

    def renew(self, tls: ClientTls) -> None:
        """Use another client certificate for new calls; calls in progress end over the old connection.

        That may take minutes, and this method does not wait for it. A call that is cut off would look to its caller as
        if the caller's task had been cancelled.
        """
        old, self._channels = self._channels, self._open_channels(tls)
        for channel in old.values():
            task = asyncio.create_task(channel.close(grace=LONGEST_CALL_SECONDS), name="etcd-former-connection")
            self._closing_channels[task] = channel
            task.add_done_callback(self._closing_channels.pop)

    def _open_channels(self, tls: ClientTls) -> dict[str, grpc.aio.Channel]:
        credentials = grpc.ssl_channel_credentials(
            root_certificates=tls.ca, private_key=tls.key, certificate_chain=tls.cert
        )
        return {target: grpc.aio.secure_channel(target, credentials, options=_OPTIONS) for target in self.targets}

    async def call(self, method: str, request: Any, answer: Any = pb.Empty, *, timeout: float | None = None) -> Any:
        """Send a request to the first reachable endpoint, and decode the response as `answer`."""
        failure: EtcdUnavailable | None = None
        for target in self.targets:
            try:
                return await self.call_at(target, method, request, answer, timeout=timeout)
            except EtcdUnavailable as error:
                failure = error
        assert failure is not None
        raise failure

    async def call_at(
        self, target: str, method: str, request: Any, answer: Any, *, timeout: float | None = None
    ) -> Any:
        """Send a request to one endpoint, and decode the response as `answer`.

        Raises EtcdError, and NotLeader if the gate does not permit the call.
        """
        what = method.partition("/")[2]
        for attempt in range(1, _STALE_ATTEMPTS + 1):
            call = self._channels[target].unary_unary(
                f"/etcdserverpb.{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            self._check_permit(method)
            try:
                return await call(request, timeout=timeout or self._timeout)
            except grpc.aio.AioRpcError as error:
                failed = error_for(error.code().name, error.details() or "", what=what, target=target)
                if not isinstance(failed, EtcdStale) or attempt == _STALE_ATTEMPTS:
                    raise failed from error
        raise AssertionError("the last attempt returns or raises")

    def _check_permit(self, method: str) -> None:
        if self._gate is None or method in _READS or method.endswith(_READ_ENDINGS):
            return
        (self._gate.upkeep if method.startswith(_UPKEEP) else self._gate.writes).check()
