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
    """Group of settings."""


class ManagementCluster(_Section, frozen=True):
    """The cluster that holds the Tenant and ComputeCluster objects."""

    kubeconfig: Annotated[str, Meta(description="Kubeconfig file; empty: the pod's service account.")] = ""
    context: Annotated[str, Meta(description="Context in the kubeconfig; empty: its current context.")] = ""
    install_definitions: Annotated[
        bool,
        Meta(
            description="Whether the gateway installs its CustomResourceDefinitions at start. If false, for example "
            "because a chart installs them, it waits while they are missing or older than the gateway."
        ),
    ] = True


class LeaderElection(_Section, frozen=True):
    """The Lease `vkgateway-system/gateway`: its holder writes, and other gateways stand by."""

    lease_seconds: Annotated[
        int,
        Meta(
            ge=2,
            description="Seconds after the last renewal until a standby takes over. The leader stops writing after "
            "four fifths of it.",
        ),
    ] = 5
    renew_seconds: Annotated[Seconds, Meta(description="Seconds between renewals of the Lease.")] = 1.5
    retry_seconds: Annotated[
        Seconds, Meta(description="Seconds between reads of the Lease by a standby, and after a failed renewal.")
    ] = 0.5


class Kubelet(_Section, frozen=True):
    """The endpoint that tenants' API servers call for logs and exec."""

    port: Annotated[Port, Meta(description="HTTPS port; 0: any free port.")] = 10352
    advertise_address: Annotated[
        str,
        Meta(
            description="IP address or DNS name at which API servers and pods reach the endpoint, such as that of a "
            "Service. A name is resolved at start. Empty: the value of `address`."
        ),
    ] = ""
    advertise_port: Annotated[Port, Meta(description="Port at that address; 0: the port on which it listens.")] = 0
    streams_per_tenant: Annotated[
        Count, Meta(description="Concurrent log, exec, attach and port-forward streams per tenant.")
    ] = 100
    streams: Annotated[
        Count,
        Meta(
            description="Concurrent streams of all tenants. A tenant may use at most half of the remaining streams; "
            "the total is also limited to an eighth of the gateway's open-file limit."
        ),
    ] = 2048
    idle_seconds: Annotated[Seconds, Meta(description="Seconds after which an idle stream is closed.")] = 4 * 3600.0


class ManagedDatastore(_Section, frozen=True):
    """Certificates of an etcd that the gateway creates and renews, as Secrets of the management cluster."""

    secret_prefix: Annotated[
        str,
        Meta(
            description="Prefix of the Secrets PREFIX-authority, PREFIX-server and PREFIX-client, which the gateway "
            "creates and renews. Empty: the certificates are the files above."
        ),
    ] = ""
    namespace: Annotated[str, Meta(description="Namespace of the Secrets; empty: vkgateway-system.")] = ""
    server_names: Annotated[
        tuple[str, ...],
        Meta(
            description="DNS names, also with a wildcard, and IP addresses in etcd's certificate, in addition to "
            "localhost and the hosts of the endpoints."
        ),
    ] = ()


class Datastore(_Section, frozen=True):
    """The etcd that holds the tenants' keys; the gateway connects as its root user."""

    endpoints: Annotated[
        tuple[str, ...], Meta(description="Endpoints in the form https://HOST:PORT; at least one is required.")
    ] = ()
    ca: Annotated[
        str, Meta(description="Certificate file of the CA that etcd trusts and that signed etcd's certificate.")
    ] = ""
    ca_key: Annotated[
        str,
        Meta(
            description="File with the CA's private key (elliptic curve), which signs the client certificates of the "
            "tenants' API servers."
        ),
    ] = ""
    cert: Annotated[str, Meta(description="Client certificate file of the etcd user root.")] = ""
    key: Annotated[str, Meta(description="Private key file of the client certificate.")] = ""
    enable_auth: Annotated[
        bool,
        Meta(
            description="Whether the gateway enables etcd's users and roles at start. Without them, every tenant's API "
            "server could read the keys of all others, so the gateway starts none."
        ),
    ] = False
    managed: ManagedDatastore = ManagedDatastore()


class ControlPlanes(_Section, frozen=True):
    """The tenants' control planes."""

    driver: Annotated[
        str,
        Meta(
            description="Driver; process: control planes run as processes under the supervisor. kubernetes: they run "
            "as pods of the management cluster."
        ),
    ] = "process"
    parameters: Annotated[
        dict[str, Any],
        Meta(
            description="Parameters of the driver, as in a StorageClass; the driver process has none. The variable "
            "holds KEY=VALUE pairs separated by commas, or a JSON object."
        ),
    ] = {}
    other_drivers: Annotated[
        dict[str, dict[str, Any]],
        Meta(description="Other drivers that tenants may select with spec.controlPlane.driver, with their parameters."),
    ] = {}
    templates_dir: Annotated[str, Meta(description="Directory of tenant templates; empty: the shipped templates.")] = ""
    program_dirs: Annotated[tuple[str, ...], Meta(description="Directories that are searched for programs first.")] = ()
    cache_dir: Annotated[
        str, Meta(description="Program cache; empty: $XDG_CACHE_HOME/vkgateway (~/.cache/vkgateway).")
    ] = ""
    supervisor_socket: Annotated[
        str, Meta(description="Socket of the supervisor; empty: run/supervisor.sock in the data directory.")
    ] = ""
    webhook_ranges: Annotated[
        tuple[str, ...],
        Meta(
            description="CIDRs of private addresses at which webhooks by URL of tenants may be, in addition to tenant "
            "pods and public addresses. Only for the driver process. A range of several addresses opens none of this "
            "machine. Leave out the networks of compute clusters."
        ),
    ] = ()
    concurrency: Annotated[Count, Meta(description="Control planes that are created or deleted concurrently.")] = 8


class Sync(_Section, frozen=True):
    """Synchronization between tenant clusters and compute clusters."""

    workers: Annotated[
        Count,
        Meta(description="Objects that are reconciled concurrently; one tenant uses at most an eighth of the workers."),
    ] = 128
    connections: Annotated[
        Count, Meta(description="Maximum number of connections to one compute cluster's API server.")
    ] = 32
    tenant_connections: Annotated[
        Count, Meta(description="Maximum number of connections to one tenant's API server.")
    ] = 4


class Nodes(_Section, frozen=True):
    """The virtual nodes."""

    lease_seconds: Annotated[Count, Meta(description="Seconds for which a node's Lease is valid.")] = 40
    renew_seconds: Annotated[Seconds, Meta(description="Seconds between renewals of a node's Lease.")] = 10.0


class Names(_Section, frozen=True):
    """DNS names of the tenants' Services."""

    forwarder: Annotated[
        str,
        Meta(
            description="DNS server for all other names, as ADDRESS:PORT. It must be reachable from pods and must not "
            "resolve the compute cluster's names. Empty: pods use their node's resolver, and Service names do not "
            "resolve."
        ),
    ] = ""
    sources: Annotated[
        tuple[str, ...],
        Meta(
            description="CIDRs of the compute clusters' pods and nodes. Tenants' name servers refuse queries from "
            "other addresses. Empty: they answer every source."
        ),
    ] = ()


class Services(_Section, frozen=True):
    """ClusterIPs of the tenants' Services."""

    range: Annotated[
        str,
        Meta(
            description="CIDR from which each new tenant gets a separate range. Compute clusters get a ServiceCIDR for "
            "each range, so a Service has the same ClusterIP in the tenant and compute cluster. Compute nodes must "
            "not reach anything else at these addresses. Empty: tenants use their template's range, and ClusterIPs "
            "differ between the clusters."
        ),
    ] = "10.160.0.0/11"
    tenant_prefix: Annotated[
        Count,
        Meta(description="Prefix length of a tenant's range; 20 allows 4,094 Services, 28 allows 14."),
    ] = 20


class Arbiter(_Section, frozen=True):
    """Admission and eviction of gangs."""

    notice_seconds: Annotated[
        Delay,
        Meta(
            description="Seconds between the notice of an eviction and the deletion of the pod; a pool may override it."
        ),
    ] = 30.0
    grace_seconds_max: Annotated[
        Seconds, Meta(description="Maximum grace period of an evicted pod in seconds; a pool may override it.")
    ] = 120.0
    minimum_run_seconds: Annotated[
        Delay,
        Meta(description="Seconds after its start during which a gang is evicted only as a last resort."),
    ] = 0.0
    age_cap_seconds: Annotated[
        Delay, Meta(description="Maximum waiting time that raises a gang's position in the queue, in seconds.")
    ] = 3600.0
    half_life: Annotated[
        str | float,
        Meta(
            description="Time after which half of what a tenant borrowed in the past no longer counts for its place in "
            "the queue, from 1m to 90d, such as 24h or 7d; 0: only what it borrows now counts."
        ),
    ] = "0"
    run_margin: Annotated[
        float, Meta(ge=1, description="Factor by which observed run times are multiplied to forecast starts.")
    ] = 1.25
    gather_seconds: Annotated[
        Delay, Meta(description="Seconds during which changes are collected before a scheduling cycle.")
    ] = 0.05
    bind_seconds: Annotated[
        Seconds,
        Meta(
            description="Seconds after which an admitted pod that is not bound to a node is withdrawn and scheduled "
            "again."
        ),
    ] = 60.0
    decision_log: Annotated[
        str,
        Meta(
            description="File to which decisions are appended as JSON lines for `vkgateway replay`; -: standard "
            "output; empty: none."
        ),
    ] = ""
    usage_log: Annotated[
        str,
        Meta(description="File to which GPU usage is appended as JSON lines; -: standard output; empty: none."),
    ] = ""


class Observability(_Section, frozen=True):
    """Health endpoints for every caller; metrics and the arbiter's state for authorized callers."""

    address: Annotated[str, Meta(description="Address of /healthz and /readyz (HTTP).")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port of /healthz and /readyz; 0: any free port.")] = 9631
    socket: Annotated[
        str,
        Meta(
            description="Unix socket of /metrics and /arbiter/state, for the gateway's user and root; empty: "
            "run/gateway.sock in the data directory."
        ),
    ] = ""
    secure_address: Annotated[
        str,
        Meta(
            description="Address of /metrics and /arbiter/state (HTTPS), for bearer tokens of the management cluster "
            "that may get these paths; empty: the value of `address`."
        ),
    ] = ""
    secure_port: Annotated[Port, Meta(description="HTTPS port; 0: any free port.")] = 9632
    cert: Annotated[
        str, Meta(description="Certificate file of the HTTPS port; empty: a certificate from the gateway's CA.")
    ] = ""
    key: Annotated[str, Meta(description="Private key file of the HTTPS certificate.")] = ""


class Page(_Section, frozen=True):
    """The page `/ui/` for browsers. Readers sign in with a token of their cluster."""

    enabled: Annotated[bool, Meta(description="Whether the gateway serves the page.")] = True
    address: Annotated[
        str,
        Meta(
            description="Address of the page. On a loopback address it is HTTP, unless a certificate is set; on any "
            "other it is HTTPS."
        ),
    ] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Port of the page; 0: any free port.")] = 9633
    cert: Annotated[
        str, Meta(description="Certificate file of the page; empty: a certificate from the gateway's CA.")
    ] = ""
    key: Annotated[str, Meta(description="Private key file of the page's certificate.")] = ""
    documentation: Annotated[
        str,
        Meta(
            pattern=r"^(https?://.*)?$",
            description="Address at which you publish the site of `make docs`; the page links to it. Empty: no link.",
        ),
    ] = ""


class Logging(_Section, frozen=True):
    """The daemon's log, on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Minimum level: debug, info, warning or error."),
    ] = "info"
    format: Annotated[Literal["text", "json"], Meta(description="Format: text for people, json for programs.")] = "text"


class Config(_Section, frozen=True):
    """All settings of `vkgateway serve`."""

    data_dir: Annotated[
        str, Meta(description="Directory for files that can be rebuilt; empty: ~/.local/share/vkgateway.")
    ] = ""
    address: Annotated[
        str,
        Meta(
            description="Address at which tenants' API servers and the kubelet endpoint listen. API servers refuse to "
            "call a loopback address. In a pod, 0.0.0.0 with kubelet.advertiseAddress. Empty: the machine's primary "
            "address."
        ),
    ] = ""
    management_cluster: ManagementCluster = ManagementCluster()
    leader_election: LeaderElection = LeaderElection()
    kubelet: Kubelet = Kubelet()
    datastore: Datastore = Datastore()
    control_planes: ControlPlanes = ControlPlanes()
    sync: Sync = Sync()
    nodes: Nodes = Nodes()
    names: Names = Names()
    services: Services = Services()
    arbiter: Arbiter = Arbiter()
    observability: Observability = Observability()
    page: Page = Page()
    logging: Logging = Logging()


def gateway_socket(settings: Observability, *, data_dir: Path) -> Path:
    """Return the path of the Unix socket that serves metrics and state."""
    return Path(settings.socket) if settings.socket else data_dir / "run" / "gateway.sock"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its path in the file, type, default and description."""

    path: tuple[str, ...]
    type: Any
    default: Any
    description: str

    @property
    def key(self) -> str:
        """The dotted path, such as `kubelet.port`."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The environment variable, such as `VKGATEWAY_KUBELET_PORT`."""
        words = (re.sub(r"(?<!^)(?=[A-Z])", "_", part) for part in self.path)
        return "_".join((PREFIX, *words)).upper()


def iterate_settings(section: type[_Section] = Config, *, path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Yield all settings in the order of the file."""
    hints = get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        hint = hints[field.name]
        field_path = (*path, field.encode_name)
        if isinstance(hint, type) and issubclass(hint, _Section):
            yield from iterate_settings(hint, path=field_path)
        else:
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            yield Setting(field_path, _unannotated_type(hint), default, _description(hint))


def _unannotated_type(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _description(hint: Any) -> str:
    """Return the description; the outermost of nested annotations wins."""
    metas = [meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Meta)]
    return next((meta.description for meta in reversed(metas) if meta.description), "")
