"""Keys of an etcd cluster."""

from __future__ import annotations

from typing import Final

from vkgateway.planes.etcd.connection import EtcdConnection
from vkgateway.planes.etcd.errors import EtcdError
from vkgateway.planes.etcd.pb import etcd_pb2 as pb
from vkgateway.planes.etcd.ranges import KeyRange

_MIN_PAGE_KEYS: Final = 32
"""Keys per page for values of up to 1.5 MiB each within gRPC's message size."""
_MAX_PAGE_KEYS: Final = 1000
_PAGE_BYTES: Final = 8 << 20
_DELETE_BATCH: Final = 200
"""Keys per delete request. etcd reads the values to list the keys, and a value may have 1.5 MiB."""


class EtcdKeys:
    """Keys and their values. Every call may be repeated, and raises `EtcdError` if it fails."""

    def __init__(self, connection: EtcdConnection) -> None:
        self._connection = connection

    async def count_range(self, keys: KeyRange) -> int:
        """Return the number of keys in a range."""
        request = pb.RangeRequest(key=keys.start, range_end=keys.end, count_only=True)
        return int((await self._connection.call("KV/Range", request, pb.RangeResponse)).count)

    async def measure_range(self, keys: KeyRange) -> int:
        """Return the total bytes of keys and values in a range, without earlier revisions. Reads the whole range."""
        size, start, limit = 0, keys.start, _MIN_PAGE_KEYS
        while True:
            request = pb.RangeRequest(key=start, range_end=keys.end, limit=limit)
            try:
                answer = await self._connection.call("KV/Range", request, pb.RangeResponse)
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
        await self._connection.call("KV/Put", pb.PutRequest(key=key.encode(), value=value), pb.PutResponse)

    async def delete_range(self, keys: KeyRange) -> int:
        """Delete every key in a range and return how many there were.

        Deletes in batches: etcd serves no other request during a delete, and aborts requests that take seconds.
        """
        start, deleted, more = keys.start, 0, True
        while more:
            page = pb.RangeRequest(key=start, range_end=keys.end, limit=_DELETE_BATCH, keys_only=True)
            found = await self._connection.call("KV/Range", page, pb.RangeResponse)
            more = bool(found.more)
            end = found.kvs[-1].key + b"\0" if more else keys.end
            request = pb.DeleteRangeRequest(key=start, range_end=end)
            deleted += int((await self._connection.call("KV/DeleteRange", request, pb.DeleteRangeResponse)).deleted)
            start = end
        return deleted
