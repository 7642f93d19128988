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
# Compaction and defragmentation go through all there is.
_MAINTENANCE_TIMEOUT = 300.0
# So many values in an answer if each may have 1.5 MiB, which together may be received; and so many at most.
_MIN_PAGE_KEYS = 32
_MAX_PAGE_KEYS = 1000
_PAGE_BYTES = 8 << 20
# So many keys are deleted by one call: to list them, etcd reads their values as well, which may have 1.5 MiB each.
_DELETE_BATCH = 200
# How often a call is made that meets changes of users or roles on its way: each attempt takes milliseconds.
_STALE_ATTEMPTS = 10
_OPTIONS = (
    # Back within seconds once etcd is: gRPC's own default waits up to two minutes between attempts.
    ("grpc.max_reconnect_backoff_ms", 2000),
    # So long an attempt may take, whatever its name says: an etcd or a machine that is busy needs its time for TLS.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_receive_message_length", 64 << 20),
    # Tenants' API servers go straight to it too; gRPC would take every proxy in the environment, for loopback as well.
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """How an etcd member is: version, size of its file, what of that is in use, and what it may grow to (bytes).

    `quota` is 0 where etcd does not tell (before 3.6). `alarms` are sentences; one about space says NOSPACE.
    """

    version: str
    size: int
    size_in_use: int
    quota: int
    revision: int
    alarms: tuple[str, ...]

    @property
    def is_full(self) -> bool:
        """Whether etcd takes no writes any more, until somebody says that there is room again."""
        return any("NOSPACE" in alarm for alarm in self.alarms)


class EtcdClient:
    """Talks to the first of `endpoints` that answers; every call raises an `EtcdError` where it fails.

    Calls are tried once at each endpoint. All of them may be repeated: adding twice raises `EtcdExists`.
    """

    def __init__(self, endpoints: Sequence[str], *, tls: ClientTls, timeout: float = _TIMEOUT) -> None:
        self._timeout = timeout
        self._targets = grpc_targets(endpoints)
        self._channels = self._open_channels(tls)
        self._closing_channels: dict[asyncio.Task[None], grpc.aio.Channel] = {}
        """Channels of before, until the last call over them has ended."""

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
        """Prove itself by another certificate from now on; calls that are under way go on to their end.

        That may be minutes away, and nobody waits for it. A call that were cut off would look to its caller as if the
        caller's own task had been cancelled.
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
        """Return the key's value, None where it does not exist."""
        answer = await self._call("KV/Range", pb.RangeRequest(key=key.encode()), pb.RangeResponse)
        return bytes(answer.kvs[0].value) if answer.kvs else None

    async def list_keys(self, keys: KeyRange, *, limit: int = 0) -> list[str]:
        """List the keys in a range; at most `limit` of them, 0 for all."""
        request = pb.RangeRequest(key=keys.start, range_end=keys.end, limit=limit, keys_only=True)
        answer = await self._call("KV/Range", request, pb.RangeResponse)
        return [pair.key.decode(errors="replace") for pair in answer.kvs]

    async def count_keys(self, keys: KeyRange) -> int:
        """Count the keys in a range."""
        request = pb.RangeRequest(key=keys.start, range_end=keys.end, count_only=True)
        return int((await self._call("KV/Range", request, pb.RangeResponse)).count)

    async def measure_size(self, keys: KeyRange) -> int:
        """Add up the bytes of all keys and values in a range; what they were before is not counted. Reads all of it."""
        size, start, limit = 0, keys.start, _MIN_PAGE_KEYS
        while True:
            request = pb.RangeRequest(key=start, range_end=keys.end, limit=limit)
            try:
                answer = await self._call("KV/Range", request, pb.RangeResponse)
            except EtcdError as error:
                if error.transient or limit == _MIN_PAGE_KEYS:
                    raise
                limit = _MIN_PAGE_KEYS  # what follows is larger than what came before
                continue
            page = sum(len(pair.key) + len(pair.value) for pair in answer.kvs)
            size += page
            if not answer.more:
                return size
            start = answer.kvs[-1].key + b"\0"
            # Each call has etcd count all that follows: the fewer the better.
            limit = max(_MIN_PAGE_KEYS, min(_MAX_PAGE_KEYS, _PAGE_BYTES * len(answer.kvs) // page))

    async def put(self, key: str, value: bytes) -> None:
        """Write one key."""
        await self._call("KV/Put", pb.PutRequest(key=key.encode(), value=value), pb.PutResponse)

    async def delete_range(self, keys: KeyRange) -> int:
        """Delete every key in a range; how many there were.

        Some at a time: etcd does nothing else while it deletes, and gives a call up that takes seconds.
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
        """Forget what keys were before `revision`, if that was not done yet; returns when the space is free."""
        request = pb.CompactionRequest(revision=revision, physical=True)
        with contextlib.suppress(EtcdCompacted):
            await self._call("KV/Compact", request, pb.CompactionResponse, timeout=_MAINTENANCE_TIMEOUT)

    async def defragment(self) -> None:
        """Have every member write its file anew, as large as what is in use; it answers nobody meanwhile.

        One that cannot be reached is passed over.
        """
        for target in self._targets:
            with contextlib.suppress(EtcdUnavailable):
                await self._call_at(
                    target, "Maintenance/Defragment", pb.Empty(), pb.Empty, timeout=_MAINTENANCE_TIMEOUT
                )

    async def allow_writes(self) -> None:
        """Say that there is room again, after members' alarms that there is none."""
        found = await self._call("Maintenance/Alarm", pb.AlarmRequest(alarm=pb.NOSPACE), pb.AlarmResponse)
        for alarm in found.alarms:
            over = pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, member_id=alarm.member_id, alarm=pb.NOSPACE)
            await self._call("Maintenance/Alarm", over, pb.AlarmResponse)

    async def member_status(self) -> MemberStatus:
        """Return how the member that answers is."""
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
        """Tell whether users and roles are enforced."""
        answer = await self._call("Auth/AuthStatus", pb.AuthStatusRequest(), pb.AuthStatusResponse)
        return bool(answer.enabled)

    async def enable_auth(self) -> None:
        """Enforce users and roles from now on; wants a user `root` with the role `root`."""
        await self._call_empty("Auth/AuthEnable", pb.AuthEnableRequest())

    async def list_users(self) -> list[str]:
        """List the users' names."""
        return list((await self._call("Auth/UserList", pb.Empty(), pb.AuthUserListResponse)).users)

    async def add_user(self, name: str) -> None:
        """Add a user without a password, known by the common name of its certificate alone."""
        options = pb.UserAddOptions(no_password=True)
        await self._call_empty("Auth/UserAdd", pb.AuthUserAddRequest(name=name, options=options))

    async def delete_user(self, name: str) -> None:
        """Delete a user."""
        await self._call_empty("Auth/UserDelete", pb.AuthUserDeleteRequest(name=name))

    async def roles_of(self, user: str) -> list[str]:
        """List the roles that a user has."""
        request = pb.AuthUserGetRequest(name=user)
        return list((await self._call("Auth/UserGet", request, pb.AuthUserGetResponse)).roles)

    async def grant_role(self, user: str, *, role: str) -> None:
        """Give a role to a user; nothing happens where it has it."""
        await self._call_empty("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user=user, role=role))

    async def revoke_role(self, user: str, *, role: str) -> None:
        """Take a role from a user."""
        await self._call_empty("Auth/UserRevokeRole", pb.AuthUserRevokeRoleRequest(name=user, role=role))

    async def list_roles(self) -> list[str]:
        """List the roles' names."""
        return list((await self._call("Auth/RoleList", pb.Empty(), pb.AuthRoleListResponse)).roles)

    async def add_role(self, name: str) -> None:
        """Add a role that may do nothing yet."""
        await self._call_empty("Auth/RoleAdd", pb.AuthRoleAddRequest(name=name))

    async def delete_role(self, name: str) -> None:
        """Delete a role, and take it from all users."""
        await self._call_empty("Auth/RoleDelete", pb.AuthRoleDeleteRequest(role=name))

    async def ranges_of(self, role: str) -> dict[KeyRange, bool]:
        """List the ranges that a role may read, and whether it may write there too."""
        request = pb.AuthRoleGetRequest(role=role)
        answer = await self._call("Auth/RoleGet", request, pb.AuthRoleGetResponse)
        return {
            KeyRange(bytes(permission.key), bytes(permission.range_end)): permission.perm_type != pb.Permission.READ
            for permission in answer.perm
        }

    async def grant_range(self, role: str, *, keys: KeyRange, write: bool = True) -> None:
        """Let a role read a range, and write there or not any more."""
        kind = pb.Permission.READWRITE if write else pb.Permission.READ
        permission = pb.Permission(perm_type=kind, key=keys.start, range_end=keys.end)
        request = pb.AuthRoleGrantPermissionRequest(name=role, perm=permission)
        await self._call_empty("Auth/RoleGrantPermission", request)

    async def revoke_range(self, role: str, *, keys: KeyRange) -> None:
        """Take a range from a role."""
        request = pb.AuthRoleRevokePermissionRequest(role=role, key=keys.start, range_end=keys.end)
        await self._call_empty("Auth/RoleRevokePermission", request)

    async def _call_empty(self, method: str, request: Any) -> None:
        await self._call(method, request, pb.Empty)

    async def _call(self, method: str, request: Any, answer: Any, *, timeout: float | None = None) -> Any:
        """Make one call at the first endpoint that can be reached, and decode what comes as `answer`."""
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
