"""Fakes of what a control plane needs: etcd, the supervisor, programs, the record store, a driver."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.types import ApiServerExposure, ExposureType
from vkgateway.planes.credentials import Credentials
from vkgateway.planes.drivers.base import (
    AssignedPorts,
    DriverListener,
    NameServers,
    ServerEndpoint,
    ServerEndpoints,
    StepMessages,
)
from vkgateway.planes.drivers.process.ports import choose_port
from vkgateway.planes.etcd.client import EtcdAuth, EtcdClient, EtcdKeys
from vkgateway.planes.etcd.errors import EtcdDenied, EtcdExists, EtcdNotFound
from vkgateway.planes.etcd.ranges import KeyRange
from vkgateway.planes.plane import ControlPlaneSpec
from vkgateway.planes.publication import Publication
from vkgateway.planes.record_store import ControlPlaneRecord
from vkgateway.planes.supervisor.spec import ProcessSpec, ProcessState, in_group


class FakeKeys(EtcdKeys):
    """Keys in memory."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}

    async def put(self, key: str, value: bytes) -> None:
        self.held[key.encode()] = value

    async def measure_range(self, keys: KeyRange) -> int:
        held = self.held.items()
        return sum(len(key) + len(value) for key, value in held if keys.start <= key < keys.end)

    async def delete_range(self, keys: KeyRange) -> int:
        gone = [key for key in self.held if keys.start <= key < keys.end]
        for key in gone:
            del self.held[key]
        return len(gone)


class FakeAuth(EtcdAuth):
    """Users and roles in memory; `changes` counts writes to them."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.users: dict[str, set[str]] = {}
        self.roles: dict[str, dict[KeyRange, bool]] = {}
        self.enabled = enabled
        self.changes = 0

    async def is_enabled(self) -> bool:
        return self.enabled

    async def enable(self) -> None:
        if "root" not in self.users.get("root", ()):
            raise EtcdDenied("root user does not have root role")
        self.enabled = True
        self.changes += 1

    async def list_users(self) -> list[str]:
        return sorted(self.users)

    async def add_user(self, name: str) -> None:
        self._new(self.users, name)

    async def delete_user(self, name: str) -> None:
        self._known(self.users, name)
        del self.users[name]
        self.changes += 1

    async def roles_of(self, user: str) -> list[str]:
        return sorted(self._known(self.users, user))

    async def grant_role(self, user: str, *, role: str) -> None:
        self._known(self.roles, role)
        self._known(self.users, user).add(role)
        self.changes += 1

    async def revoke_role(self, user: str, *, role: str) -> None:
        self._known(self.users, user).remove(role)
        self.changes += 1

    async def add_role(self, name: str) -> None:
        self._new(self.roles, name)

    async def delete_role(self, name: str) -> None:
        self._known(self.roles, name)
        del self.roles[name]
        for roles in self.users.values():
            roles.discard(name)
        self.changes += 1

    async def ranges_of(self, role: str) -> dict[KeyRange, bool]:
        return dict(sorted(self._known(self.roles, role).items()))

    async def grant_range(self, role: str, *, keys: KeyRange, write: bool = True) -> None:
        self._known(self.roles, role)[keys] = write
        self.changes += 1

    async def revoke_range(self, role: str, *, keys: KeyRange) -> None:
        del self._known(self.roles, role)[keys]
        self.changes += 1

    def _new(self, held: dict[str, Any], name: str) -> None:
        if name in held:
            raise EtcdExists(f"{name} already exists")
        held[name] = {} if held is self.roles else set()
        self.changes += 1

    def _known(self, held: dict[str, Any], name: str) -> Any:
        if name not in held:
            raise EtcdNotFound(f"{name} name not found")
        return held[name]


class FakeEtcd(EtcdClient):
    """An etcd in memory."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.keys: FakeKeys = FakeKeys()
        self.auth: FakeAuth = FakeAuth(enabled=enabled)


class FakeSupervisor:
    """A supervisor that records specs and runs nothing; `starts` lists the processes that it would start, in order."""

    def __init__(self) -> None:
        self.specs: dict[str, ProcessSpec] = {}
        self.starts: list[str] = []
        self.failing: dict[str, str] = {}

    async def ensure_process(self, spec: ProcessSpec) -> ProcessState:
        if self.specs.get(spec.name) != spec:
            self.starts.append(spec.name)
        self.specs[spec.name] = spec
        return self._state(spec)

    async def remove_group(self, prefix: str) -> None:
        self.specs = {name: spec for name, spec in self.specs.items() if not in_group(name, prefix)}

    async def list_processes(self, prefix: str = "") -> list[ProcessState]:
        return [self._state(spec) for name, spec in sorted(self.specs.items()) if in_group(name, prefix)]

    def _state(self, spec: ProcessSpec) -> ProcessState:
        reason = self.failing.get(spec.name, "")
        return ProcessState(
            name=spec.name,
            state="backoff" if reason else "running",
            pid=None if reason else 1,
            restarts=1 if reason else 0,
            since=time.time(),
            reason=reason,
            log="",
            argv=spec.argv,
        )


class FakePrograms:
    """A resolver that finds every program in /bin; `versions` lists the requested versions."""

    def __init__(self) -> None:
        self.versions: list[str] = []

    def __call__(self, version: str) -> FakePrograms:
        self.versions.append(version)
        return self

    async def resolve(self, *names: str) -> Mapping[str, Path]:
        return {name: Path("/bin") / name for name in names}


@dataclass
class FakeStore:
    """Records in memory."""

    records: dict[str, ControlPlaneRecord] = field(default_factory=dict)
    saves: int = 0

    async def load(self, tenant: str) -> ControlPlaneRecord | None:
        return self.records.get(tenant)

    async def save(self, tenant: str, record: ControlPlaneRecord) -> ControlPlaneRecord:
        self.saves += 1
        kept = self.records.get(tenant)
        if kept is not None and kept.credentials.ca.cert_pem != record.credentials.ca.cert_pem:
            return kept
        self.records[tenant] = record
        return record

    async def delete(self, tenant: str) -> None:
        self.records.pop(tenant, None)

    async def assigned_ports(self) -> dict[int, str]:
        return {record.port: tenant for tenant, record in self.records.items()}

    async def assigned_ranges(self) -> dict[str, str]:
        return {record.service_range: tenant for tenant, record in self.records.items() if record.service_range}

    def take(self, tenant: str, *, port: int) -> None:
        """Assign a port to a tenant."""
        some = ControlPlaneRecord(credentials=Credentials.create(tenant), port=port)
        self.records[tenant] = replace(some)


class FakeEndpoints:
    """Endpoints of a fake driver; every port is free."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver

    async def ensure(
        self, tenant: str, *, requested_port: int, recorded: ServerEndpoint | None, assigned_ports: AssignedPorts
    ) -> ServerEndpoint:
        if recorded is not None and requested_port in (0, recorded.port):
            return ServerEndpoint(self._driver.address, recorded.port)
        assigned = await assigned_ports()
        port = choose_port(
            tenant,
            requested=requested_port,
            assigned=assigned,
            address=self._driver.address,
            can_bind=lambda _address, _port: True,
        )
        return ServerEndpoint(self._driver.address, port)

    async def publish(
        self, tenant: str, exposure: ApiServerExposure, *, previous: ExposureType, endpoint: ServerEndpoint
    ) -> Publication:
        return Publication(type=exposure.type)

    async def find(self, tenant: str, *, recorded_port: int) -> ServerEndpoint | None:
        return ServerEndpoint(self._driver.address, recorded_port)

    async def reachable_from(
        self, tenant: str, cluster: ClusterIdentity, *, endpoint: ServerEndpoint
    ) -> Collection[ServerEndpoint]:
        return (endpoint,)

    async def running(self, tenant: str, *, endpoint: ServerEndpoint) -> Collection[ServerEndpoint]:
        return self._driver.servers or (endpoint,)


@dataclass
class FakeDriver:
    """A driver that records its calls and runs nothing."""

    running: dict[str, tuple[ControlPlaneSpec, str]] = field(default_factory=dict)
    starts: int = 0
    failure: str = ""
    address: str = "10.0.0.1"
    servers: tuple[ServerEndpoint, ...] = ()
    """Where the replicas of API servers answer, if not at the address."""
    name_servers: NameServers | None = None

    step_messages = StepMessages("preparing", "starting", "stopping")

    @property
    def endpoints(self) -> ServerEndpoints:
        return FakeEndpoints(self)

    async def prepare(self, version: str) -> None:
        """Nothing is missing."""

    async def run(self, listener: DriverListener) -> None:
        """Nothing changes by itself."""

    async def start(self, plane: ControlPlaneSpec, *, credentials: Credentials, version: str) -> frozenset[str]:
        assert credentials.ca.has_signed(credentials.admin.cert_pem)
        if self.running.get(plane.cluster) != (plane, version):
            self.starts += 1
        self.running[plane.cluster] = (plane, version)
        return frozenset({f"fingerprint of {plane.kubelet_user}"})

    async def start_clients(self, plane: ControlPlaneSpec, *, version: str) -> None:
        """They start with the API server."""

    async def kubelet_clients(self, tenant: str) -> frozenset[str]:
        plane, _ = self.running.get(tenant, (None, ""))
        return frozenset({f"fingerprint of {plane.kubelet_user}"} if plane else ())

    async def failure_reason(self, plane: ControlPlaneSpec) -> str:
        return self.failure

    async def stop(self, tenant: str) -> None:
        self.running.pop(tenant, None)

    async def remove(self, tenant: str) -> None:
        self.running.pop(tenant, None)

    async def close(self) -> None:
        """Nothing is open."""
