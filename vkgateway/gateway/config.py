"""The daemon's settings: every key with a default and a description, from a YAML file and the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from vkgateway.gateway.settingchecks import wrong
from vkgateway.model.errors import InputError

PREFIX = "VKGATEWAY"
_HINT = "`vkgateway serve --print-config` prints every key with its default and description."

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
    """Health and metrics, over plain HTTP."""

    address: Annotated[str, Meta(description="Address of /healthz, /readyz and /metrics.")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="Their port; 0: any free one.")] = 9631


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


def settings(section: type[_Section] = Config, *, path: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Every key there is, in the order of the file."""
    hints = get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        hint = hints[field.name]
        here = (*path, field.encode_name)
        if isinstance(hint, type) and issubclass(hint, _Section):
            yield from settings(hint, path=here)
        else:
            yield Setting(here, _bare(hint), field.default, _description(hint))


def load(file: Path | None = None, *, environment: Mapping[str, str] | None = None) -> Config:
    """Read settings: defaults, over them `file` (YAML), over them the environment.

    Raises InputError with the path of the offending key.
    """
    data = _read(file) if file is not None else {}
    _convert(data, strict=True, source=str(file))
    environment = os.environ if environment is None else environment
    _overlay(data, environment)
    config = _convert(data, strict=False, source="environment")
    _check(config, file=file, environment=environment)
    return config


def _convert(data: dict[str, Any], *, strict: bool, source: str) -> Config:
    try:
        return msgspec.convert(data, Config, strict=strict)
    except msgspec.ValidationError as error:
        raise InputError(_complaint(str(error), data, source=source), hint=_HINT) from error


def _check(config: Config, *, file: Path | None, environment: Mapping[str, str]) -> None:
    """See that settings can be worked with. Raises InputError that names the first that cannot, and who set it."""
    first = next(wrong(config), None)
    if first is None:
        return
    key = first.key.partition("[")[0]
    variables = (setting.variable for setting in settings() if setting.key == key and setting.variable in environment)
    source = next(variables, str(file or ""))
    raise InputError(f"{source}: {first.key}: {first.why}" if source else f"{first.key}: {first.why}", hint=first.hint)


def render(config: Config | None = None) -> str:
    """Return the settings as a YAML file in which every key is described."""
    import yaml

    plain = msgspec.to_builtins(config or Config())
    lines: list[str] = []
    open_sections: tuple[str, ...] = ()
    for setting in settings():
        parents = setting.path[:-1]
        if parents != open_sections:
            lines += ["", *(f"{parent}:" for parent in parents)]
            open_sections = parents
        indent = "  " * len(parents)
        value = plain
        for part in setting.path:
            value = value[part]
        shown = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
        lines += [
            f"{indent}# {setting.description} [{setting.variable}]",
            f"{indent}{setting.path[-1]}: {shown}",
        ]
    return "\n".join(lines) + "\n"


def _read(file: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(file.read_text())
    except FileNotFoundError as error:
        raise InputError(
            f"settings file {file} does not exist", hint="Leave out --config to run with the defaults."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"settings file {file} is not YAML: {' '.join(str(error).split())}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError(f"settings file {file} holds a {type(data).__name__}, not keys and values")
    return data


def _overlay(data: dict[str, Any], environment: Mapping[str, str]) -> None:
    for setting in settings():
        text = environment.get(setting.variable)
        if text is None:
            continue
        section = data
        for part in setting.path[:-1]:
            section = section.setdefault(part, {})
        is_list = get_origin(setting.type) is tuple
        section[setting.path[-1]] = [item for item in text.split(",") if item] if is_list else text


def _complaint(message: str, data: Any, *, source: str) -> str:
    """`Expected int - at $.kubelet.port` becomes `SOURCE: kubelet.port: expected int; it is 'x'`."""
    what, _, where = message.partition(" - at ")
    what = what[:1].lower() + what[1:]
    place = where.strip("`").partition("$")[2].lstrip(".")
    if where.startswith("`key`"):
        return f"{source}: {place or 'the whole'} has a key that is no text"
    path = tuple(place.partition("[")[0].split("."))
    setting = next((setting for setting in settings() if setting.path == path), None)
    if setting is not None and get_origin(setting.type) is Literal:
        what = f"expected one of {', '.join(get_args(setting.type))}"
    if "unknown field" not in what:
        what += f"; it is {_value(data, place)!r}"
    if source == "environment" and setting is not None:
        source = setting.variable
    return f"{source}: {place}: {what}" if place else f"{source}: {what}"


def _value(data: Any, place: str) -> Any:
    """What stands at a place as msgspec writes it: `datastore.endpoints[0]`."""
    for key, index in re.findall(r"(\w+)(?:\[(\d+)\])?", place):
        data = data[key][int(index)] if index else data[key]
    return data


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _description(hint: Any) -> str:
    """Of nested annotations the outermost description counts."""
    metas = [meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Meta)]
    return next((meta.description for meta in reversed(metas) if meta.description), "")


def table() -> str:
    """Return all keys as a Markdown table, as the documentation shows them."""
    lines = ["| key | default | environment variable | meaning |", "|---|---|---|---|"]
    for setting in settings():
        default = msgspec.json.encode(setting.default).decode()
        lines.append(f"| `{setting.key}` | `{default}` | `{setting.variable}` | {setting.description} |")
    return "\n".join(lines) + "\n"
