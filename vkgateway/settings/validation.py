"""Validation of settings beyond their types, such as addresses and dependencies between settings (pure)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vkgateway.api.errors import InputError
from vkgateway.kube.leader_election import LeaseTiming
from vkgateway.scheduler.core.past_share import half_life_problem

if TYPE_CHECKING:
    from vkgateway.settings.config import (
        Arbiter,
        Config,
        ControlPlanes,
        Datastore,
        LeaderElection,
        Names,
        Nodes,
        Observability,
        Page,
        Services,
    )

_LEASE_REQUEST_SECONDS = 0.2
"""Shortest time limit of a request for the leader's Lease, of which two must fit into the time that it may write."""


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
_DNS_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*\.?")


@dataclass(frozen=True, slots=True)
class InvalidSetting:
    """Invalid setting: its key, the reason, and the way out."""

    key: str
    why: str
    hint: str


def invalid_settings(config: Config) -> Iterator[InvalidSetting]:
    """Yield all invalid settings."""
    yield from _check_leader_election(config.leader_election)
    yield from _check_nodes(config.nodes)
    yield from _check_address(config)
    yield from _check_advertised(config)
    yield from _check_datastore(config.datastore)
    yield from _check_managed(config.datastore)
    yield from _check_control_planes(config.control_planes)
    yield from _check_names(config.names)
    yield from _check_services(config.services)
    yield from _check_arbiter(config.arbiter)
    yield from _check_observability(config.observability)
    yield from _check_page(config.page)


def address_and_port(text: str) -> tuple[str, int]:
    """Parse `ADDRESS:PORT`, an IPv6 address in brackets. Raises ValueError."""
    address, _, number = text.rpartition(":")
    port = int(number)
    if not 0 < port <= 65535:
        raise ValueError(f"{port} is not a port number")
    return str(ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))), port


def parse_half_life(value: str | float) -> float:
    """Return the half-life of `arbiter.halfLife` in seconds; 0: none. Raises InputError."""
    from vkgateway.api.run_limits import parse_duration

    text = str(value).strip()
    if not text.strip("0.smhd"):
        return 0.0
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = -1.0
    if problem := half_life_problem(seconds):
        raise InputError(f"{text!r} {problem}", hint="Use a value like 24h or 7d, or 0 to count only present use.")
    return seconds


def _check_arbiter(arbiter: Arbiter) -> Iterator[InvalidSetting]:
    try:
        parse_half_life(arbiter.half_life)
    except InputError as error:
        yield InvalidSetting("arbiter.halfLife", str(error), error.hint)


def _check_leader_election(election: LeaderElection) -> Iterator[InvalidSetting]:
    timing = LeaseTiming(election.lease_seconds, election.renew_seconds, election.retry_seconds)
    if timing.request_timeout < _LEASE_REQUEST_SECONDS:
        spare = timing.write - 2 * _LEASE_REQUEST_SECONDS
        why = (
            f"{election.renew_seconds:g} plus retrySeconds ({election.retry_seconds:g}) exceeds {spare:g} s: four "
            f"fifths of leaseSeconds ({election.lease_seconds}) minus the time for two requests"
        )
        yield InvalidSetting("leaderElection.renewSeconds", why, "Use a third of leaseSeconds, and a tenth to retry.")


def _check_nodes(nodes: Nodes) -> Iterator[InvalidSetting]:
    if nodes.renew_seconds >= nodes.lease_seconds:
        why = (
            f"{nodes.renew_seconds:g} is not less than nodes.leaseSeconds ({nodes.lease_seconds}): leases would expire "
            "between renewals"
        )
        yield InvalidSetting("nodes.renewSeconds", why, "Use a quarter of nodes.leaseSeconds.")


def _check_address(config: Config) -> Iterator[InvalidSetting]:
    hint = "Set an address of this machine, or leave it empty."
    address, advertised = config.address, config.kubelet.advertise_address
    if not address:
        return
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        yield InvalidSetting("address", f"{address!r} is not an IP address", hint)
        return
    if found.is_loopback:
        yield InvalidSetting("address", f"API servers refuse to call virtual nodes at {address}", hint)
    elif found.is_unspecified and not advertised:
        why = f"API servers refuse to call virtual nodes at {address}, and kubelet.advertiseAddress is empty"
        yield InvalidSetting("address", why, "Set kubelet.advertiseAddress to the address or name of a Service.")
    elif found.is_unspecified and config.control_planes.driver == "process":
        yield InvalidSetting("address", f"API servers of the driver process cannot serve at {address}", hint)


def _check_advertised(config: Config) -> Iterator[InvalidSetting]:
    key, wanted = "kubelet.advertiseAddress", config.kubelet.advertise_address
    hint = "Set an IP address, or a DNS name such as vkgateway-kubelet.vkgateway-system.svc."
    if not wanted:
        return
    try:
        found = ipaddress.ip_address(wanted)
    except ValueError:
        if not _DNS_NAME.fullmatch(wanted):
            yield InvalidSetting(key, f"{wanted!r} is neither an IP address nor a DNS name", hint)
    else:
        if found.is_loopback or found.is_unspecified:
            yield InvalidSetting(key, f"API servers refuse to call virtual nodes at {wanted}", hint)


def _check_datastore(datastore: Datastore) -> Iterator[InvalidSetting]:
    from vkgateway.planes.etcd.endpoints import grpc_targets

    for number, endpoint in enumerate(datastore.endpoints):
        try:
            grpc_targets((endpoint,))
        except InputError as error:
            yield InvalidSetting(f"datastore.endpoints[{number}]", str(error), error.hint)


def _check_managed(datastore: Datastore) -> Iterator[InvalidSetting]:
    managed = datastore.managed
    prefix = managed.secret_prefix
    if prefix and not _LABEL.fullmatch(prefix):
        why = f"{prefix!r} is not the beginning of a Secret's name"
        yield InvalidSetting("datastore.managed.secretPrefix", why, "Use lower-case letters, digits and dashes.")
    files = {"ca": datastore.ca, "caKey": datastore.ca_key, "cert": datastore.cert, "key": datastore.key}
    given = [f"datastore.{key}" for key, file in files.items() if file]
    if prefix and given:
        why = f"{prefix!r}, but {', '.join(given)} name certificate files"
        yield InvalidSetting(
            "datastore.managed.secretPrefix",
            why,
            "Set the files for an external etcd, or secretPrefix for an etcd whose certificates the gateway creates.",
        )
    for number, name in enumerate(managed.server_names):
        if not is_server_name(name):
            why = f"{name!r} is neither a DNS name nor an IP address"
            key = f"datastore.managed.serverNames[{number}]"
            yield InvalidSetting(key, why, "Use the form etcd.example, *.etcd.example or 10.0.0.1.")


def is_server_name(name: str) -> bool:
    """Return whether a certificate can contain the name: an IP address, or a DNS name that may begin with `*.`."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return _DNS_NAME.fullmatch(name.removeprefix("*.")) is not None
    return True


def _check_control_planes(control_planes: ControlPlanes) -> Iterator[InvalidSetting]:
    from vkgateway.planes.drivers.driver_set import driver_factory

    keys = {"driver": control_planes.driver} | {f"otherDrivers.{name}": name for name in control_planes.other_drivers}
    for key, name in keys.items():
        try:
            driver_factory(name)
        except InputError as error:
            yield InvalidSetting(f"controlPlanes.{key}", str(error), error.hint)
    yield from _check_webhook_ranges(control_planes.webhook_ranges, drivers=frozenset(keys.values()))


def _check_webhook_ranges(ranges: Sequence[str], *, drivers: frozenset[str]) -> Iterator[InvalidSetting]:
    from vkgateway.planes.webhook_ranges import parse_webhook_range

    key = "controlPlanes.webhookRanges"
    if ranges and drivers == {"kubernetes"}:
        why = "the driver kubernetes does not use it"
        yield InvalidSetting(key, why, "Set controlPlanes.parameters.blockedRanges to what API servers must not reach.")
    for number, text in enumerate(ranges):
        try:
            parse_webhook_range(text)
        except InputError as error:
            yield InvalidSetting(f"{key}[{number}]", str(error), error.hint)


def _check_names(names: Names) -> Iterator[InvalidSetting]:
    for number, source in enumerate(names.sources):
        try:
            ipaddress.ip_network(source)
        except ValueError:
            why = f"{source!r} is not a CIDR"
            yield InvalidSetting(f"names.sources[{number}]", why, "Use the form 10.214.0.0/16, without host bits.")
    if not names.forwarder:
        return
    try:
        address_and_port(names.forwarder)
    except ValueError:
        why = f"{names.forwarder!r} is not an IP address with a port"
        yield InvalidSetting("names.forwarder", why, "Use the form 10.0.0.2:53 or [fd00::2]:53.")


def _check_services(services: Services) -> Iterator[InvalidSetting]:
    from vkgateway.planes.service_ranges import ServiceRanges

    if not services.range:
        return
    try:
        ServiceRanges.parse(services.range, prefix=services.tenant_prefix)
    except InputError as error:
        key, _, why = str(error).partition(": ")
        yield InvalidSetting(key, why, error.hint or "Leave services.range empty to use the template's range.")


def _check_observability(observability: Observability) -> Iterator[InvalidSetting]:
    yield from _check_certificate("observability", observability)


def _check_page(page: Page) -> Iterator[InvalidSetting]:
    yield from _check_certificate("page", page)
    try:
        ipaddress.ip_address(page.address)
    except ValueError:
        yield InvalidSetting("page.address", f"{page.address!r} is not an IP address", "Use 127.0.0.1, or 0.0.0.0.")


def _check_certificate(section: str, settings: Observability | Page) -> Iterator[InvalidSetting]:
    for given, missing in (("cert", "key"), ("key", "cert")):
        if getattr(settings, given) and not getattr(settings, missing):
            why = f"empty, but {section}.{given} is {getattr(settings, given)!r}"
            yield InvalidSetting(f"{section}.{missing}", why, "Set both files or neither.")
