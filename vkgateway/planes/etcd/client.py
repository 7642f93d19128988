"""A small etcd v3 client: keys, users and roles, and maintenance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from vkgateway.planes.etcd.auth import EtcdAuth
from vkgateway.planes.etcd.connection import EtcdConnection
from vkgateway.planes.etcd.endpoints import ClientTls
from vkgateway.planes.etcd.keys import EtcdKeys
from vkgateway.planes.etcd.maintenance import EtcdMaintenance


class EtcdClient:
    """Client of an etcd cluster, one part for each of etcd's services. `timeout` is that of a call, in seconds."""

    def __init__(self, endpoints: Sequence[str], *, tls: ClientTls, timeout: float = 10.0) -> None:
        self.connection = EtcdConnection(endpoints, tls=tls, timeout=timeout)
        self.keys = EtcdKeys(self.connection)
        self.auth = EtcdAuth(self.connection)
        self.maintenance = EtcdMaintenance(self.connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()
