"""The daemon's settings: every key with its default, its description and its environment variable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

PREFIX = "VKGATEWAY"

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]
Delay = Annotated[float, Meta(ge=0, le=1e9)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Settings that belong together."""


class ManagementCluster(_Section, frozen=True):
    """The cluster in which Tenant and ComputeCluster objects live."""

    kubeconfig: Annotated[str, Meta(description="Kubeconfig file; empty: the service account of the pod.")] = ""
    context: Annotated[str, Meta(description="Context in it; empty: its current one.")] = ""


class Kubelet(_Section, frozen=True):
    """The endpoint that tenants' API servers call for logs and exec."""

    port: Annotated[Port, Meta(description="HTTPS port; 0: any free one.")] = 10352
    streams_per_tenant: Annotated[
        Count, Meta(description="Log, exec, attach and port-forward streams a tenant may hold open at once.")
    ] = 100
    streams: Annotated[
        Count,
        Meta(
            description="Such streams of all tenants at once; a tenant holds no more than are left for others, and "
            "there are no more than an eighth of the files that the gateway may open."
        ),
    ] = 2048
    idle_seconds: Annotated[Seconds, Meta(description="A stream without a byte for so long is closed, in seconds.")] = (
        4 * 3600.0
    )


class Datastore(_Section, frozen=True):
    """The etcd that holds the tenants' keys; the client certificate is that of its root user."""

    endpoints: Annotated[
        tuple[str, ...], Meta(description="Addresses, as https://HOST:PORT; the gateway does not start without one.")
    ] = ()
    ca: Annotated[str, Meta(description="Certificate file of the authority that etcd trusts and is signed by.")] = ""
    ca_key: Annotated[
        str,
        Meta(
            description="Private key file of it, an elliptic curve key; tenants' API servers get certificates from it."
        ),
    ] = ""
    cert: Annotated[str, Meta(description="Client certificate file of the user root.")] = ""
    key: Annotated[str, Meta(description="Private key file of that certificate.")] = ""


class ControlPlanes(_Section, frozen=True):
    """Where and from what the tenants' control planes run."""

    driver: Annotated[Literal["process"], Meta(description="How they run: as processes under the supervisor.")] = (
        "process"
    )
    templates_dir: Annotated[str, Meta(description="Folder of tenant templates; empty: those shipped.")] = ""
    program_dirs: Annotated[tuple[str, ...], Meta(description="Folders in which programs are looked for first.")] = ()
    cache_dir: Annotated[
        str, Meta(description="Program cache; empty: $XDG_CACHE_HOME/vkgateway (~/.cache/vkgateway).")
    ] = ""
    supervisor_socket: Annotated[
        str, Meta(description="Socket of the supervisor; empty: run/supervisor.sock in the data directory.")
    ] = ""
    concurrency: Annotated[Count, Meta(description="Control planes made or removed at the same time.")] = 8


class Sync(_Section, frozen=True):
    """The work between tenants and compute clusters."""

    workers: Annotated[
        Count, Meta(description="Objects worked on at the same time, an eighth of them at most for one tenant.")
    ] = 128
    connections: Annotated[Count, Meta(description="Connections kept to one compute cluster's API server at most.")] = (
        32
    )
    tenant_connections: Annotated[
        Count, Meta(description="Connections kept to one tenant's API server at most; each costs a handshake first.")
    ] = 4


class Nodes(_Section, frozen=True):
    """The virtual nodes."""

    lease_seconds: Annotated[Count, Meta(description="A node's Lease is valid so long, in seconds.")] = 40
    renew_seconds: Annotated[Seconds, Meta(description="It is renewed this often, in seconds.")] = 10.0


class Names(_Section, frozen=True):
    """Names of tenants' Services, as their pods ask for them."""

    forwarder: Annotated[
        str,
        Meta(
            description="Resolver of all other names, as ADDRESS:PORT: reachable from pods, and without the compute "
            "cluster's own names; empty: pods use their node's resolver, and names of Services are answered by nobody."
        ),
    ] = ""
    sources: Annotated[
        tuple[str, ...],
        Meta(
            description="Ranges of addresses from which compute clusters' pods and nodes ask: tenants' name servers "
            "refuse all others. Empty: they answer every source."
        ),
    ] = ()


class Services(_Section, frozen=True):
    """Addresses of tenants' Services."""

    range: Annotated[
        str,
        Meta(
            description="From this range each new tenant gets one of its own, which compute clusters get too, as a "
            "ServiceCIDR; so a Service's address is the same above and below. Nothing else may be reached at these "
            "addresses from compute nodes. Empty: tenants have their template's range, and other addresses below."
        ),
    ] = "10.160.0.0/11"
    tenant_prefix: Annotated[
        Count,
        Meta(description="Length of the prefix of a tenant's range: 20 is room for 4,094 Services, 28 for 14."),
    ] = 20


class Arbiter(_Section, frozen=True):
    """Who runs, who waits and who is evicted."""

    notice_seconds: Annotated[
        Delay,
        Meta(description="Between the notice of an eviction and the deletion, in seconds; a pool may say its own."),
    ] = 30.0
    grace_seconds_max: Annotated[
        Seconds, Meta(description="The most that an evicted pod may take to end, in seconds; a pool may say its own.")
    ] = 120.0
    minimum_run_seconds: Annotated[
        Delay,
        Meta(description="For so long after its start nothing is evicted unless nothing else will do, in seconds."),
    ] = 0.0
    age_cap_seconds: Annotated[
        Delay, Meta(description="Waiting raises the place in line for so long at most, in seconds.")
    ] = 3600.0
    run_margin: Annotated[
        float, Meta(ge=1, description="Observed run times are taken this many times longer when a start is foreseen.")
    ] = 1.25
    gather_seconds: Annotated[
        Delay, Meta(description="News is gathered for so long before it is decided, in seconds.")
    ] = 0.05
    bind_seconds: Annotated[
        Seconds,
        Meta(description="A pod that its node has not taken for so long is taken back and planned again, in seconds."),
    ] = 60.0
    decision_log: Annotated[
        str, Meta(description="File to which decisions are appended, as JSON lines to be replayed; empty: none.")
    ] = ""
    usage_log: Annotated[
        str, Meta(description="File to which the use of GPUs is appended, as JSON lines; empty: none.")
    ] = ""


class Observability(_Section, frozen=True):
    """Health for every caller; metrics and the arbiter's state for callers that may read of all tenants."""

    address: Annotated[str, Meta(description="Address of /healthz and /readyz, over plain HTTP.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Their port; 0: any free one.")] = 9631
    socket: Annotated[
        str,
        Meta(
            description="Unix socket of /metrics and /arbiter/state, for the gateway's own user and root; empty: "
            "run/gateway.sock in the data directory."
        ),
    ] = ""
    secure_address: Annotated[
        str,
        Meta(
            description="Address of /metrics and /arbiter/state over HTTPS, for tokens of the management cluster that "
            "may get these paths; empty: that of `address`."
        ),
    ] = ""
    secure_port: Annotated[Port, Meta(description="Its port; 0: any free one.")] = 9632
    cert: Annotated[
        str, Meta(description="Its certificate file; empty: a certificate of the gateway's own authority.")
    ] = ""
    key: Annotated[str, Meta(description="Private key file of that certificate.")] = ""


class Logging(_Section, frozen=True):
    """The daemon's log, on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="From which level on: debug, info, warning or error."),
    ] = "info"
    format: Annotated[Literal["text", "json"], Meta(description="For people (text) or programs (json).")] = "text"


class Config(_Section, frozen=True):
    """All settings of `vkgateway serve`."""

    data_dir: Annotated[
        str, Meta(description="Folder for files that can be rebuilt; empty: ~/.local/share/vkgateway.")
    ] = ""
    address: Annotated[
        str,
        Meta(
            description="Address at which tenants' API servers and the kubelet endpoint listen; not "
            "loopback, which API servers refuse to call; empty: the machine's primary address."
        ),
    ] = ""
    management_cluster: ManagementCluster = ManagementCluster()
    kubelet: Kubelet = Kubelet()
    datastore: Datastore = Datastore()
    control_planes: ControlPlanes = ControlPlanes()
    sync: Sync = Sync()
    nodes: Nodes = Nodes()
    names: Names = Names()
    services: Services = Services()
    arbiter: Arbiter = Arbiter()
    observability: Observability = Observability()
    logging: Logging = Logging()


def gateway_socket(settings: Observability, *, data_dir: Path) -> Path:
    """Return the Unix socket at which a gateway serves metrics and state."""
    return Path(settings.socket) if settings.socket else data_dir / "run" / "gateway.sock"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: its path in the file, its environment variable, default and description."""

    path: tuple[str, ...]
    type: Any
    default: Any
    description: str

    @property
    def key(self) -> str:
        """The path as people write it: `kubelet.port`."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The environment variable: `VKGATEWAY_KUBELET_PORT`."""
        words = (re.sub(r"(?<!^)(?=[A-Z])", "_", part) for part in self.path)
        return "_".join((PREFIX, *words)).upper()


def iterate_settings(section: type[_Section] = Config, *, path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Every key there is, in the order of the file."""
    hints = get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        hint = hints[field.name]
        here = (*path, field.encode_name)
        if isinstance(hint, type) and issubclass(hint, _Section):
            yield from iterate_settings(hint, path=here)
        else:
            yield Setting(here, _unannotated_type(hint), field.default, _description(hint))


def _unannotated_type(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _description(hint: Any) -> str:
    """Of nested annotations the outermost description counts."""
    metas = [meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Meta)]
    return next((meta.description for meta in reversed(metas) if meta.description), "")
