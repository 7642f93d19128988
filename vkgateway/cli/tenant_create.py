"""`vkgateway tenant create`: create the Tenant object and wait until it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
import yaml
from msgspec import inspect

from vkgateway.api.errors import ConflictError, InputError, VkgatewayError
from vkgateway.api.names import API_VERSION
from vkgateway.api.objects import Condition, find_condition
from vkgateway.api.types import ACCEPTED, CONTROL_PLANE_READY, READY, VIRTUAL_NODES_READY, Tenant, TenantSpec
from vkgateway.cli import name_completion
from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option
from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.output import FORMATS, serialize
from vkgateway.cli.progress import Progress, explain_interruption
from vkgateway.cli.tenant_options import POOL_METAVAR, spec_options, wait_options
from vkgateway.clusters.status import IMPOSSIBLE_REASON, TAKEN_REASON
from vkgateway.kube import yamltext

if TYPE_CHECKING:
    from vkgateway.kube.client import Client


POLL_SECONDS = 0.2
MAX_POLLS = 15
GATEWAY_WAIT_SECONDS = 30.0
"""A running gateway reconciles a new tenant at once; a starting gateway needs a few seconds."""

EPILOG = """\b
Examples:
  vkgateway tenant create alpha --pool a100:guarantee=nvidia.com/gpu=8,limit=nvidia.com/gpu=16
  vkgateway tenant create beta --pool a100 --pool v100.local --no-wait
  vkgateway tenant create beta --pool a100 --budget resource=nvidia.com/gpu,hours=1000,pool=a100
  vkgateway tenant create gamma --pool real --storage-class local
  vkgateway tenant create -f beta.yaml
  vkgateway tenant create alpha --pool a100 --dry-run > alpha.yaml; kubectl apply -f alpha.yaml
"""


@click.command(short_help="Create a tenant.", epilog=EPILOG)
@click.argument("name", required=False)
@click.option("-f", "--file", type=click.Path(path_type=Path), help="Manifest of a Tenant; options override it.")
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar=POOL_METAVAR,
    shell_complete=name_completion.pools,
    help="A pool of the tenant; repeatable. The default cluster is local.",
)
@click.option("--template", help="Tenant template. [default: default]")
@spec_options(has_defaults=True)
@wait_options("the tenant is ready")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Validate the tenant, print the object and the effect of its guarantees; create nothing.",
)
@click.option("-o", "--output", type=click.Choice(FORMATS[1:]), help="Print the object when done.")
@gateway_option
@cluster_options
@run_async
async def create(
    *,
    name: str | None,
    file: Path | None,
    pools: tuple[str, ...],
    template: str | None,
    wait: bool,
    timeout: float,
    dry_run: bool,
    output: str | None,
    gateway: GatewayEndpoint,
    data_dir: Path,
    kubeconfig: Path | None,
    **options: Any,
) -> None:
    """Create tenant NAME and wait until it is ready. Equivalent to `kubectl apply` of a Tenant object.

    The name is a DNS label of at most 32 characters that starts with a letter and contains no double dash.
    """
    from vkgateway.cli import cluster, tenant_spec, whatif_tenant
    from vkgateway.kube.resources import TENANTS

    manifest = read_manifest(file) if file else None
    tenant = tenant_spec.apply_options(tenant_spec.with_name(manifest, name), template=template, pools=pools, **options)
    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        tenants = await cluster.list_tenants(client)
        existing = find_equal(tenant, tenants)
        if existing is None:
            await validate_tenant(client, tenant, others=tenants)
        if dry_run:
            click.echo(serialize(tenant_spec.to_manifest(tenant), output=output or "yaml"), nl=False)
            await whatif_tenant.print_what_if(tenant, data_dir, gateway.or_cluster(data_dir, kubeconfig))
            return
        created = existing or await create_tenant(client, tenant)

        async def withdraw(_current: Tenant) -> str:
            if created.spec.deletion_protection:
                unprotected = {"metadata": {"uid": created.metadata.uid}, "spec": {"deletionProtection": False}}
                await client.patch(TENANTS, created.metadata.name, unprotected)
            await client.delete(TENANTS, created.metadata.name, uid=created.metadata.uid)
            return "The tenant was deleted again. Correct the options and retry."

        undo = withdraw if existing is None else None
        if wait:
            with explain_interruption(_interruption_text(created)):
                created = await wait_until_ready(client, created, timeout=timeout, withdraw=undo)
        else:
            created = await wait_until_accepted(client, created, withdraw=undo)
        _print_result(created, output=output, waited=wait)


def find_equal(tenant: Tenant, tenants: Sequence[Tenant]) -> Tenant | None:
    """Return the tenant of this name if it has the same spec: an interrupted command is repeated.

    Raises ConflictError if the name is taken.
    """
    from vkgateway.api.errors import ConflictError

    name = tenant.metadata.name
    found = next((each for each in tenants if each.metadata.name == name), None)
    if found is None:
        return None
    if found.metadata.deletion_timestamp is not None:
        raise ConflictError(
            f"tenant {name!r} is being deleted",
            hint=f"Wait until `vkgateway tenant describe {name}` does not find it, or choose another name.",
        )
    if found.spec.delete_after:
        raise ConflictError(
            f"tenant {name!r} is deleted after {found.spec.delete_after}, and its data is kept until then",
            hint=f"Run `vkgateway tenant restore {name}`, or `vkgateway tenant delete {name}` to delete its data now.",
        )
    if found.spec != tenant.spec:
        raise ConflictError(
            f"tenant {name!r} already exists, with another spec",
            hint=f"Choose another name, or change the tenant with `vkgateway tenant set {name}`.",
        )
    click.echo(f"tenant {name} exists already, with this spec", err=True)
    return found


def _interruption_text(tenant: Tenant) -> str:
    name = tenant.metadata.name
    return (
        f"The gateway continues to create tenant {name}. Follow it with `vkgateway tenant wait {name}`, or withdraw it "
        f"with `vkgateway tenant delete {name}`."
    )


def _print_result(tenant: Tenant, *, output: str | None, waited: bool) -> None:
    import msgspec

    from vkgateway.api.objects import find_condition
    from vkgateway.api.types import SPEC_EFFECTIVE

    name = tenant.metadata.name
    if (effect := find_condition(tenant.status.conditions, SPEC_EFFECTIVE)) is not None:
        click.echo(f"Warning: {effect.message}", err=True)
    if output == "name":
        click.echo(name)
    elif output:
        click.echo(serialize(msgspec.to_builtins(tenant), output=output), nl=False)
    elif waited:
        click.echo(f"Next: vkgateway tenant kubeconfig {name} -f {name}.kubeconfig", err=True)
    else:
        click.echo(f"Tenant {name} is being created. Check it with: vkgateway tenant describe {name}", err=True)


async def validate_tenant(
    client: Client, tenant: Tenant, *, others: Sequence[Tenant], previous: TenantSpec | None = None
) -> None:
    """Validate a tenant like the gateway, before it is written. `previous` is the spec in force of an existing tenant.

    Of the others, those of which only the data is kept have no guarantees. Raises InputError with the field, its value
    and the way out.
    """
    from vkgateway.api.errors import InputError
    from vkgateway.cli import cluster
    from vkgateway.tenants.acceptance import find_objections, pool_offers

    computes = await cluster.list_compute_clusters(client)
    # Without templates: only the gateway knows which exist.
    holders = [other for other in others if not other.spec.delete_after]
    objections = find_objections(tenant, offers=pool_offers(computes, others=holders), previous=previous)
    if objections:
        raise InputError(
            f"tenant {tenant.metadata.name!r} is not accepted: {objections[0]}",
            hint="\n       ".join(str(rest) for rest in objections[1:]),
        )


async def create_tenant(client: Client, tenant: Tenant) -> Tenant:
    """Create the object. Raises ConflictError if the name was taken meanwhile."""
    import msgspec

    from vkgateway.api.errors import ConflictError
    from vkgateway.api.types import Tenant
    from vkgateway.cli import tenant_spec
    from vkgateway.kube import errors
    from vkgateway.kube.resources import TENANTS

    try:
        answer = await client.create(TENANTS, tenant_spec.to_manifest(tenant))
    except errors.AlreadyExists as error:
        raise ConflictError(f"tenant {tenant.metadata.name!r} already exists", hint="Choose another name.") from error
    return msgspec.json.decode(answer, type=Tenant)


Withdraw = Callable[["Tenant"], Awaitable[str]]
"""Undoes what a command has written, if the gateway does not accept it; returns a hint for the user."""


async def wait_until_ready(
    client: Client, tenant: Tenant, *, timeout: float, withdraw: Withdraw | None = None
) -> Tenant:
    """Print each condition when it becomes True, until the tenant is ready.

    If the gateway does not accept the tenant, withdraw it and raise InputError. Raises UnavailableError after `timeout`
    seconds.
    """
    from vkgateway.api.errors import UnavailableError

    name = tenant.metadata.name
    milestones = Milestones()
    with Progress() as progress:
        progress(f"tenant {name}: waiting for the gateway")
        while True:
            current = await _get_acceptable(client, tenant, withdraw=withdraw)
            for line in milestones.new_milestones(current):
                progress.done(line)
            if milestones.is_complete:
                progress.done(f"tenant {name} is ready")
                return current
            if current.status.observed_generation == 0 and progress.elapsed_seconds > min(
                GATEWAY_WAIT_SECONDS, timeout
            ):
                raise UnavailableError(
                    (
                        f"the gateway has not reconciled tenant {name!r} after "
                        f"{progress.elapsed_seconds:.0f} s; it is probably not running"
                    ),
                    hint="Check it with `vkgateway status` and start it with `vkgateway up` (or `vkgateway serve`), "
                    f"which creates the tenant. To withdraw it, run `vkgateway tenant delete {name}`.",
                )
            if progress.elapsed_seconds > timeout:
                raise UnavailableError(
                    f"tenant {name!r} is not ready after {timeout:.0f} s: {milestones.next_milestone(current)}",
                    hint=f"The gateway keeps retrying. Check it with `vkgateway tenant describe {name}`.",
                )
            progress(f"tenant {name}: {milestones.next_milestone(current)}")
            await asyncio.sleep(POLL_SECONDS)


async def wait_until_accepted(client: Client, tenant: Tenant, *, withdraw: Withdraw | None) -> Tenant:
    """Return when the gateway has accepted the tenant, or after a few seconds if the gateway seems not to run.

    If the gateway does not accept the tenant, withdraw it and raise InputError.
    """

    current = tenant
    for _ in range(MAX_POLLS):
        current = await _get_acceptable(client, tenant, withdraw=withdraw)
        if is_accepted(current):
            break
        await asyncio.sleep(POLL_SECONDS)
    return current


async def _get_acceptable(client: Client, tenant: Tenant, *, withdraw: Withdraw | None) -> Tenant:
    """Return the tenant's current state; if it can never become ready, withdraw it and raise the error."""
    from vkgateway.cli import cluster

    name = tenant.metadata.name
    current = await cluster.get_tenant_with_retry(client, name)
    error = rejection_error(current)
    if error is None:
        return current
    error.hint = await withdraw(current) if withdraw else f"Correct it with `vkgateway tenant set {name}`."
    raise error


MILESTONES = (ACCEPTED, CONTROL_PLANE_READY, VIRTUAL_NODES_READY, READY)


class Milestones:
    """Conditions that a tenant has reached, each reported once."""

    def __init__(self) -> None:
        self._reached: set[str] = set()

    @property
    def is_complete(self) -> bool:
        """Whether the tenant is ready."""
        return READY in self._reached

    def new_milestones(self, tenant: Tenant) -> Iterator[str]:
        """Yield one line for each condition that became True since the last call, except for Ready."""
        for kind in MILESTONES:
            found = _current_condition(tenant, kind)
            if kind in self._reached or found is None or found.status != "True":
                continue
            self._reached.add(kind)
            if kind != READY:
                yield f"{kind}: {found.message or found.reason}"

    def next_milestone(self, tenant: Tenant) -> str:
        """Return the first condition that is not True, with its message."""
        if tenant.status.observed_generation == 0:
            return "waiting for the gateway"
        for kind in MILESTONES:
            found = _current_condition(tenant, kind)
            if found is None or found.status != "True":
                return f"{kind}: {found.message or found.reason}" if found else f"waiting for {kind}"
        return "ready"


def _current_condition(tenant: Tenant, kind: str) -> Condition | None:
    """Return the condition if it refers to the object's current generation."""
    found = find_condition(tenant.status.conditions, kind)
    if found is None or 0 < found.observed_generation < tenant.metadata.generation:
        return None
    return found


def is_accepted(tenant: Tenant) -> bool:
    """Return whether the gateway has accepted the object's current generation."""
    accepted = _current_condition(tenant, ACCEPTED)
    return accepted is not None and accepted.status == "True"


def rejection_error(tenant: Tenant) -> VkgatewayError | None:
    """Return the error of a tenant that can never become ready; None otherwise."""
    accepted, control_plane = _current_condition(tenant, ACCEPTED), _current_condition(tenant, CONTROL_PLANE_READY)
    prefix = f"tenant {tenant.metadata.name!r} is not accepted: "
    if accepted is not None and accepted.status == "False":
        return InputError(prefix + accepted.message)
    if control_plane is not None and control_plane.status == "False" and control_plane.reason == IMPOSSIBLE_REASON:
        return InputError(prefix + control_plane.message)
    if control_plane is not None and control_plane.status == "False" and control_plane.reason == TAKEN_REASON:
        return ConflictError(prefix + control_plane.message)
    return None


_TOP_LEVEL_FIELDS = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})


def read_manifest(file: Path) -> Tenant:
    """Return a Tenant object from a YAML or JSON file.

    Unknown fields are refused, as `kubectl apply` does: a misspelled guarantee would have no effect. Raises InputError
    with the path of the invalid field.
    """
    data = _read_document(file)
    found = _describe_kind(data)
    if found != f"{API_VERSION} Tenant":
        raise InputError(f"manifest {file} contains {found}, not a {API_VERSION} Tenant")
    tenant = _to_tenant(data, source=str(file))
    unknown = sorted(data.keys() - _TOP_LEVEL_FIELDS) or list(
        _unknown_fields(data.get("spec"), _SPEC_TYPE, path="spec")
    )
    if unknown:
        raise InputError(
            f"{file}: a Tenant has no field {unknown[0]}",
            hint="`kubectl explain tenant.spec --recursive` lists all fields.",
        )
    return tenant


def _read_document(file: Path) -> Any:
    try:
        return yamltext.load(file.read_text())
    except FileNotFoundError as error:
        raise InputError(f"manifest {file} does not exist") from error
    except OSError as error:
        raise InputError(f"cannot read manifest {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(
            f"manifest {file} is not a YAML file with one object: {' '.join(str(error).split())}"
        ) from error


def _describe_kind(data: Any) -> str:
    """Return the API version and kind of a document, or a description of other content."""
    if not isinstance(data, dict):
        return "nothing" if data is None else "no Kubernetes object"
    return " ".join(str(data.get(key) or f"(no {key})") for key in ("apiVersion", "kind"))


def _to_tenant(data: dict[str, Any], *, source: str) -> Tenant:
    try:
        return msgspec.convert(data, Tenant)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        path = where.strip("`").removeprefix("$.")
        raise InputError(f"{source}: {path}: {what}" if path else f"{source}: {what}") from error


_SPEC_TYPE = inspect.type_info(TenantSpec)


def _unknown_fields(value: Any, kind: inspect.Type, *, path: str) -> Iterator[str]:
    """Yield the paths of fields that `kind` does not have; maps accept all keys."""
    if isinstance(kind, inspect.VarTupleType):
        for number, item in enumerate(value or ()):
            yield from _unknown_fields(item, kind.item_type, path=f"{path}[{number}]")
    elif isinstance(kind, inspect.StructType):
        fields = {field.encode_name: field.type for field in kind.fields}
        for key, inner in (value or {}).items():
            if key in fields:
                yield from _unknown_fields(inner, fields[key], path=f"{path}.{key}")
            else:
                yield f"{path}.{key}"
