"""Choices of a platform: number, address, ports and options, kept from one `up` to the next."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from vkgateway.api.errors import ConflictError, InputError
from vkgateway_platform.embedded import etcd, network, ports
from vkgateway_platform.embedded.hollow.nodes import MACHINES
from vkgateway_platform.embedded.options import HOLLOW_NODES_MAX, PORTS, UpOptions
from vkgateway_platform.embedded.record import PlatformRecord

_LOCAL_PORTS: Final = frozenset({"etcd", "etcd-peer", "hollow-kubelet", "gateway-health", "gateway-page"})
"""Ports that only processes of this machine call; they listen on loopback."""

ListenSocket = tuple[str, int]
"""Address and port."""


@dataclass(frozen=True, slots=True)
class MachineState:
    """Current state of the machine."""

    interfaces: Mapping[str, str] = field(default_factory=dict)
    """Alias of each interface; empty if the platform may not create interfaces."""
    own_interface: bool = True
    """Whether the platform may create an interface."""
    primary_address: str = ""
    """The machine's address, for a platform without an interface."""
    other_sockets: frozenset[ListenSocket] = frozenset()
    """Choices of other platforms, whether they run or not."""


def detect_machine(*, neighbours: frozenset[ListenSocket] = frozenset()) -> MachineState:
    """Return the state of the machine."""
    if network.can_make_interfaces():
        return MachineState(interfaces=network.list_interfaces(), other_sockets=neighbours)
    address = network.primary_address()
    return MachineState(own_interface=False, primary_address=address, other_sockets=neighbours)


def merge_options(record: PlatformRecord, options: UpOptions) -> PlatformRecord:
    """Return the record with the options applied.

    Raises:
        InputError: an option has an unknown value.
    """
    wanted = {name: value for name, value in _requested_values(options).items() if value is not None}
    hollow_nodes = {**record.hollow_nodes, **_check_hollow_nodes(options.hollow_nodes)}
    return msgspec.structs.replace(record, **wanted, hollow_nodes=hollow_nodes)


def assign_address(record: PlatformRecord, *, surroundings: MachineState) -> PlatformRecord:
    """Give a new platform a number, an interface and an address; an existing one keeps them.

    Raises:
        ConflictError: the machine no longer has the platform's address.
    """
    if record.address:
        _check_address(record, surroundings=surroundings)
        return record
    if not surroundings.own_interface:
        return msgspec.structs.replace(record, address=surroundings.primary_address)
    # Platforms that are down need their numbers to come up again.
    kept = {network.interface_name(number) for number in network.numbers_at(surroundings.other_sockets)}
    number = network.free_number(taken=surroundings.interfaces.keys() | kept)
    return msgspec.structs.replace(
        record,
        number=number,
        interface=network.interface_name(number),
        address=network.interface_address(number),
    )


def choose_ports(
    record: PlatformRecord,
    options: UpOptions,
    *,
    surroundings: MachineState,
    ours: Callable[[], Container[int]] = frozenset,
    free: ports.PortTest = ports.is_free,
) -> PlatformRecord:
    """Choose the ports of a platform with an address; its own processes listen at `ours`.

    Raises:
        ConflictError: a port is in use.
    """
    chosen = ports.choose_ports(
        PORTS,
        addresses={name: _listen_address(record, name) for name in PORTS},
        kept=record.ports,
        requested=options.ports,
        port_range=options.port_range,
        ours=ours,
        others=surroundings.other_sockets,
        free=free,
    )
    return msgspec.structs.replace(record, ports=chosen)


def listen_sockets(record: PlatformRecord) -> frozenset[ListenSocket]:
    """Return where the platform listens while it runs."""
    return frozenset((_listen_address(record, name), port) for name, port in record.ports.items())


def _listen_address(record: PlatformRecord, port: str) -> str:
    return etcd.HOST if port in _LOCAL_PORTS else record.address


def _requested_values(options: UpOptions) -> dict[str, object]:
    return {
        "kubernetes_version": options.kubernetes_version,
        "real_node": options.real_node,
        "durable": options.durable,
        "templates_dir": None if options.templates_dir is None else str(options.templates_dir),
        "program_dirs": tuple(str(folder) for folder in options.program_dirs) or None,
        "webhook_ranges": options.webhook_ranges,
    }


def _check_hollow_nodes(requested: Mapping[str, int]) -> dict[str, int]:
    for pool, count in requested.items():
        if pool not in MACHINES:
            raise InputError(
                f"pool {pool!r} of hollow nodes does not exist", hint=f"Available pools: {', '.join(MACHINES)}."
            )
        if not 0 <= count <= HOLLOW_NODES_MAX:
            raise InputError(
                f"pool {pool} cannot have {count} hollow nodes", hint=f"A pool has 0 to {HOLLOW_NODES_MAX}."
            )
    return dict(requested)


def _check_address(record: PlatformRecord, *, surroundings: MachineState) -> None:
    if record.interface and not surroundings.own_interface:
        raise ConflictError(
            f"this platform has the network interface {record.interface}, which only root can bring up",
            hint="Run `vkgateway up` as root, or start another platform with --data-dir DIR.",
        )
    now = surroundings.primary_address
    if not record.interface and now and now != record.address:
        raise ConflictError(
            f"this platform listens at {record.address}, but the machine's address is now {now}",
            hint="Give the machine its old address, or remove the platform with `vkgateway down --purge`.",
        )
