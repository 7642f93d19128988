"""A small etcd v3 client over gRPC with TLS: keys, users, roles, compaction."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from vkgateway.controlplane.etcd.endpoints import ClientTls, grpc_targets
from vkgateway.controlplane.etcd.errors import EtcdCompacted, EtcdError, EtcdStale, EtcdUnavailable, error_for
from vkgateway.controlplane.etcd.pb import etcd_pb2 as pb
from vkgateway.controlplane.etcd.ranges import KeyRange

_TIMEOUT = 10.0
# Seconds; compaction and defragmentation process the whole store.
_MAINTENANCE_TIMEOUT = 300.0
# Keys per page: the first number for values of up to 1.5 MiB each within gRPC's message size, the second as a maximum.
_MIN_PAGE_KEYS = 32
_MAX_PAGE_KEYS = 1000
_PAGE_BYTES = 8 << 20
# Keys per delete request. etcd reads the values to list the keys, and a value may have 1.5 MiB.
_DELETE_BATCH = 200
# Attempts of a call that fails because users or roles change at the same time; each takes milliseconds.
_STALE_ATTEMPTS = 10
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


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """State of an etcd member: version, file size, bytes in use and maximum size.

    `quota` is 0 for etcd before 3.6, which does not report it. `alarms` are sentences; the one about space contains
    NOSPACE.
    """

    version: str
    size: int
    size_in_use: int
    quota: int
    revision: int
    alarms: tuple[str, ...]

    @property
    def is_full(self) -> bool:
        """Return whether etcd refuses writes until its space alarm is cleared."""
        return any("NOSPACE" in alarm for alarm in self.alarms)


class EtcdClient:
    """Client of an etcd cluster; each call tries every endpoint once and raises `EtcdError` if it fails.

    All calls may be repeated: a second `add` raises `EtcdExists`.
    """

    def __init__(self, endpoints: Sequence[str], *, tls: ClientTls, timeout: float = _TIMEOUT) -> None:
        self._timeout = timeout
        self._targets = grpc_targets(endpoints)
        self._channels = self._open_channels(tls)
        self._closing_channels: dict[asyncio.Task[None], grpc.aio.Channel] = {}
        """Replaced channels that still have calls in progress."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        former = dict(self._closing_channels)
        for task in former:
            task.cancel()
        await asyncio.gather(*former, return_exceptions=True)
        for channel in (*former.values(), *self._channels.values()):
            await channel.close(grace=None)

    def renew_connection(self, tls: ClientTls) -> None:
        """Use another client certificate for new calls; calls in progress end over the old connection.

        That may take minutes, and this method does not wait for it. A call that is cut off would look to its caller as
        if the caller's task had been cancelled.
        """
        old, self._channels = self._channels, self._open_channels(tls)
        for channel in old.values():
            task = asyncio.create_task(channel.close(grace=_MAINTENANCE_TIMEOUT), name="etcd-former-connection")
            self._closing_channels[task] = channel
            task.add_done_callback(self._closing_channels.pop)

    def _open_channels(self, tls: ClientTls) -> dict[str, grpc.aio.Channel]:
        credentials = grpc.ssl_channel_credentials(
            root_certificates=tls.ca, private_key=tls.key, certificate_chain=tls.cert
        )
        return {target: grpc.aio.secure_channel(target, credentials, options=_OPTIONS) for target in self._targets}

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key, None if it does not exist."""
        answer = await self._call("KV/Range", pb.RangeRequest(key=key.encode()), pb.RangeResponse)
        return bytes(answer.kvs[0].value) if answer.kvs else None

    async def list_keys(self, keys: KeyRange, *, limit: int = 0) -> list[str]:
        """Return the keys in a range, at most `limit`; 0 for all."""
        request = pb.RangeRequest(key=keys.start, range_end=keys.end, limit=limit, keys_only=True)
        answer = await self._call("KV/Range", request, pb.RangeResponse)
        return [pair.key.decode(errors="replace") for pair in answer.kvs]

    async def count_keys(self, keys: KeyRange) -> int:
        """Return the number of keys in a range."""
        request = pb.RangeRequest(key=keys.start, range_end=keys.end, count_only=True)
        return int((await self._call("KV/Range", request, pb.RangeResponse)).count)

    async def measure_size(self, keys: KeyRange) -> int:
        """Return the total bytes of keys and values in a range, without earlier revisions. Reads the whole range."""
        size, start, limit = 0, keys.start, _MIN_PAGE_KEYS
        while True:
            request = pb.RangeRequest(key=start, range_end=keys.end, limit=limit)
            try:
                answer = await self._call("KV/Range", request, pb.RangeResponse)
            except EtcdError as error:
                if error.transient or limit == _MIN_PAGE_KEYS:
                    raise
                limit = _MIN_PAGE_KEYS  # the next values are larger
                continue
            page = sum(len(pair.key) + len(pair.value) for pair in answer.kvs)
            size += page
            if not answer.more:
                return size
            start = answer.kvs[-1].key + b"\0"
            # Each request makes etcd count all remaining keys, so use as few as possible.
            limit = max(_MIN_PAGE_KEYS, min(_MAX_PAGE_KEYS, _PAGE_BYTES * len(answer.kvs) // page))

    async def put(self, key: str, value: bytes) -> None:
        """Write one key."""
        await self._call("KV/Put", pb.PutRequest(key=key.encode(), value=value), pb.PutResponse)

    async def delete_range(self, keys: KeyRange) -> int:
        """Delete every key in a range and return how many there were.

        Deletes in batches: etcd serves no other request during a delete, and aborts requests that take seconds.
        """
        start, deleted, more = keys.start, 0, True
        while more:
            page = pb.RangeRequest(key=start, range_end=keys.end, limit=_DELETE_BATCH, keys_only=True)
            found = await self._call("KV/Range", page, pb.RangeResponse)
            more = bool(found.more)
            end = found.kvs[-1].key + b"\0" if more else keys.end
            request = pb.DeleteRangeRequest(key=start, range_end=end)
            deleted += int((await self._call("KV/DeleteRange", request, pb.DeleteRangeResponse)).deleted)
            start = end
        return deleted

    async def compact(self, revision: int) -> None:
        """Discard all revisions before `revision`, and return when etcd has freed the space."""
        request = pb.CompactionRequest(revision=revision, physical=True)
        with contextlib.suppress(EtcdCompacted):
            await self._call("KV/Compact", request, pb.CompactionResponse, timeout=_MAINTENANCE_TIMEOUT)

    async def defragment(self) -> None:
        """Make every reachable member rewrite its file without free pages; a member serves no request meanwhile."""
        for target in self._targets:
            with contextlib.suppress(EtcdUnavailable):
                await self._call_at(
                    target, "Maintenance/Defragment", pb.Empty(), pb.Empty, timeout=_MAINTENANCE_TIMEOUT
                )

    async def allow_writes(self) -> None:
        """Clear the space alarms of all members."""
        found = await self._call("Maintenance/Alarm", pb.AlarmRequest(alarm=pb.NOSPACE), pb.AlarmResponse)
        for alarm in found.alarms:
            over = pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, member_id=alarm.member_id, alarm=pb.NOSPACE)
            await self._call("Maintenance/Alarm", over, pb.AlarmResponse)

    async def member_status(self) -> MemberStatus:
        """Return the state of the member that answers."""
        answer = await self._call("Maintenance/Status", pb.StatusRequest(), pb.StatusResponse)
        return MemberStatus(
            version=answer.version,
            size=answer.db_size,
            size_in_use=answer.db_size_in_use,
            quota=answer.db_size_quota,
            revision=answer.header.revision,
            alarms=tuple(answer.errors),
        )

    async def auth_enabled(self) -> bool:
        """Return whether etcd enforces users and roles."""
        answer = await self._call("Auth/AuthStatus", pb.AuthStatusRequest(), pb.AuthStatusResponse)
        return bool(answer.enabled)

    async def enable_auth(self) -> None:
        """Enforce users and roles. Requires a user `root` with the role `root`."""
        await self._call_empty("Auth/AuthEnable", pb.AuthEnableRequest())

    async def list_users(self) -> list[str]:
        """Return the names of all users."""
        return list((await self._call("Auth/UserList", pb.Empty(), pb.AuthUserListResponse)).users)

    async def add_user(self, name: str) -> None:
        """Add a user without a password, identified by the common name of its client certificate."""
        options = pb.UserAddOptions(no_password=True)
        await self._call_empty("Auth/UserAdd", pb.AuthUserAddRequest(name=name, options=options))

    async def delete_user(self, name: str) -> None:
        """Delete a user."""
        await self._call_empty("Auth/UserDelete", pb.AuthUserDeleteRequest(name=name))

    async def roles_of(self, user: str) -> list[str]:
        """Return the roles of a user."""
        request = pb.AuthUserGetRequest(name=user)
        return list((await self._call("Auth/UserGet", request, pb.AuthUserGetResponse)).roles)

    async def grant_role(self, user: str, *, role: str) -> None:
        """Grant a role to a user; no error if the user has it."""
        await self._call_empty("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user=user, role=role))

    async def revoke_role(self, user: str, *, role: str) -> None:
        """Revoke a role from a user."""
        await self._call_empty("Auth/UserRevokeRole", pb.AuthUserRevokeRoleRequest(name=user, role=role))

    async def list_roles(self) -> list[str]:
        """Return the names of all roles."""
        return list((await self._call("Auth/RoleList", pb.Empty(), pb.AuthRoleListResponse)).roles)

    async def add_role(self, name: str) -> None:
        """Add a role without permissions."""
        await self._call_empty("Auth/RoleAdd", pb.AuthRoleAddRequest(name=name))

    async def delete_role(self, name: str) -> None:
        """Delete a role and revoke it from all users."""
        await self._call_empty("Auth/RoleDelete", pb.AuthRoleDeleteRequest(role=name))

    async def ranges_of(self, role: str) -> dict[KeyRange, bool]:
        """Return the ranges that a role may read, each with whether it may also write."""
        request = pb.AuthRoleGetRequest(role=role)
        answer = await self._call("Auth/RoleGet", request, pb.AuthRoleGetResponse)
        return {
            KeyRange(bytes(permission.key), bytes(permission.range_end)): permission.perm_type != pb.Permission.READ
            for permission in answer.perm
        }

    async def grant_range(self, role: str, *, keys: KeyRange, write: bool = True) -> None:
        """Grant a role read access to a range; `write` sets whether it may also write."""
        kind = pb.Permission.READWRITE if write else pb.Permission.READ
        permission = pb.Permission(perm_type=kind, key=keys.start, range_end=keys.end)
        request = pb.AuthRoleGrantPermissionRequest(name=role, perm=permission)
        await self._call_empty("Auth/RoleGrantPermission", request)

    async def revoke_range(self, role: str, *, keys: KeyRange) -> None:
        """Revoke a role's access to a range."""
        request = pb.AuthRoleRevokePermissionRequest(role=role, key=keys.start, range_end=keys.end)
        await self._call_empty("Auth/RoleRevokePermission", request)

    async def _call_empty(self, method: str, request: Any) -> None:
        await self._call(method, request, pb.Empty)

    async def _call(self, method: str, request: Any, answer: Any, *, timeout: float | None = None) -> Any:
        """Send a request to the first reachable endpoint, and decode the response as `answer`."""
        failure: EtcdUnavailable | None = None
        for target in self._targets:
            try:
                return await self._call_at(target, method, request, answer, timeout=timeout)
            except EtcdUnavailable as error:
                failure = error
        assert failure is not None
        raise failure

    async def _call_at(
        self, target: str, method: str, request: Any, answer: Any, *, timeout: float | None = None
    ) -> Any:
        what = f"{method.partition('/')[2]} at {target}"
        for attempt in range(1, _STALE_ATTEMPTS + 1):
            call = self._channels[target].unary_unary(
                f"/etcdserverpb.{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            try:
                return await call(request, timeout=timeout or self._timeout)
            except grpc.aio.AioRpcError as error:
                failed = error_for(error.code().name, error.details() or "", what=what)
                if not isinstance(failed, EtcdStale) or attempt == _STALE_ATTEMPTS:
                    raise failed from error
        raise AssertionError("the last attempt returns or raises")
