"""`vkgateway tenant create`: create the Tenant object and wait until it is ready."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option
from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.output import FORMATS, serialize
from vkgateway.cli.progress import Progress, explain_interruption

if TYPE_CHECKING:
    from vkgateway.kube.client import Client
    from vkgateway.model.api import Tenant

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
    metavar="POOL[.CLUSTER][:guarantee=RES=QTY,...,limit=RES=QTY,...,weight=N,cells=8+8+1]",
    help="A pool of the tenant; repeatable. The default cluster is local.",
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="resource=RES,hours=NUMBER[,pool=POOL]",
    help="Monthly budget in hours of a unit of the resource (GPU-hours), of all pools or one; repeatable.",
)
@click.option("--template", help="Tenant template. [default: default]")
@click.option(
    "--kubernetes-version", metavar="X.Y.Z", help="Kubernetes version of the tenant. [default: see `vkgateway version`]"
)
@click.option(
    "--pod-security",
    type=click.Choice(["privileged", "baseline", "restricted"]),
    help="Pod Security Standard for the tenant's pods. [default: baseline]",
)
@click.option(
    "--storage-class",
    "storage_classes",
    multiple=True,
    metavar="NAME",
    help="Storage class that the tenant may use, '*' for all; repeatable.",
)
@click.option(
    "--preemption",
    type=click.Choice(["LowerPriority", "Never"]),
    help="Whether higher priorities preempt lower ones within the tenant. [default: LowerPriority]",
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the API server. [default: a free port]")
@click.option("--subject-alt-name", "names", multiple=True, help="Additional DNS name or IP of the API server.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the tenant is ready.")
@click.option("--timeout", type=click.FloatRange(min=1), default=300.0, show_default=True, help="Seconds to wait.")
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
    budgets: tuple[str, ...],
    template: str | None,
    kubernetes_version: str | None,
    pod_security: str | None,
    storage_classes: tuple[str, ...],
    preemption: str | None,
    port: int | None,
    names: tuple[str, ...],
    wait: bool,
    timeout: float,
    dry_run: bool,
    output: str | None,
    gateway: GatewayEndpoint,
    data_dir: Path,
    kubeconfig: Path | None,
) -> None:
    """Create tenant NAME and wait until it is ready. Equivalent to `kubectl apply` of a Tenant object.

    The name is a DNS label of at most 32 characters that starts with a letter and contains no double dash.
    """
    from vkgateway.cli import cluster, tenant_manifest, tenant_spec, whatif_tenant

    manifest = tenant_manifest.read_manifest(file) if file else None
    tenant = tenant_spec.apply_options(
        tenant_spec.with_name(manifest, name),
        template=template,
        kubernetes_version=kubernetes_version,
        pools=pools,
        budgets=budgets,
        pod_security=pod_security,
        storage_classes=storage_classes,
        preemption=preemption,
        port=port,
        subject_alt_names=names,
    )
    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        existing = None if dry_run else await _find_equal(client, tenant)
        if existing is None:
            await validate_tenant(client, tenant)
        if dry_run:
            click.echo(serialize(tenant_spec.to_manifest(tenant), output=output or "yaml"), nl=False)
            await whatif_tenant.print_what_if(tenant, data_dir, gateway.or_cluster(data_dir, kubeconfig))
            return
        created = existing or await create_tenant(client, tenant)
        if wait:
            with explain_interruption(_interruption_text(created)):
                created = await wait_until_ready(client, created, timeout=timeout, withdraw=existing is None)
        else:
            created = await wait_until_accepted(client, created)
        _print_result(created, output=output, waited=wait)


async def _find_equal(client: Client, tenant: Tenant) -> Tenant | None:
    """Return the tenant of this name if it has the same spec: an interrupted command is repeated."""
    from vkgateway.cli import cluster

    found = next(
        (each for each in await cluster.list_tenants(client) if each.metadata.name == tenant.metadata.name), None
    )
    if found is None or found.spec != tenant.spec or found.metadata.deletion_timestamp is not None:
        return None
    click.echo(f"tenant {tenant.metadata.name} exists already, with this spec", err=True)
    return found


def _interruption_text(tenant: Tenant) -> str:
    name = tenant.metadata.name
    return (
        f"The gateway continues to create tenant {name}. Follow it with `vkgateway tenant wait {name}`, or withdraw it "
        f"with `vkgateway tenant delete {name}`."
    )


def _print_result(tenant: Tenant, *, output: str | None, waited: bool) -> None:
    import msgspec

    from vkgateway.model.api import SPEC_EFFECTIVE
    from vkgateway.model.objects import find_condition

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


async def validate_tenant(client: Client, tenant: Tenant) -> None:
    """Validate a tenant like the gateway, before it is created.

    Raises InputError with the field, its value and the way out; ConflictError if the name is taken.
    """
    from vkgateway.cli import cluster
    from vkgateway.gateway.acceptance import find_objections, pool_offers
    from vkgateway.model.errors import ConflictError, InputError

    tenants = await cluster.list_tenants(client)
    name = tenant.metadata.name
    if any(other.metadata.name == name for other in tenants):
        raise ConflictError(
            f"tenant {name!r} already exists, with another spec",
            hint=f"Choose another name, or see `vkgateway tenant describe {name}`.",
        )
    computes = await cluster.list_compute_clusters(client)
    # Without templates: only the gateway knows which exist.
    objections = find_objections(tenant, offers=pool_offers(computes, others=tenants))
    if objections:
        raise InputError(
            f"tenant {name!r} is not accepted: {objections[0]}",
            hint="\n       ".join(str(rest) for rest in objections[1:]),
        )


async def create_tenant(client: Client, tenant: Tenant) -> Tenant:
    """Create the object. Raises ConflictError if the name was taken meanwhile."""
    import msgspec

    from vkgateway.cli import tenant_spec
    from vkgateway.kube import errors
    from vkgateway.kube.resources import TENANTS
    from vkgateway.model.api import Tenant
    from vkgateway.model.errors import ConflictError

    try:
        answer = await client.create(TENANTS, tenant_spec.to_manifest(tenant))
    except errors.AlreadyExists as error:
        raise ConflictError(f"tenant {tenant.metadata.name!r} already exists", hint="Choose another name.") from error
    return msgspec.json.decode(answer, type=Tenant)


async def wait_until_ready(client: Client, tenant: Tenant, *, timeout: float, withdraw: bool = True) -> Tenant:
    """Print each condition when it becomes True, until the tenant is ready.

    If the gateway does not accept the tenant, raise InputError, and with `withdraw` delete it before. Raises
    UnavailableError after `timeout` seconds.
    """
    from vkgateway.cli.tenant_progress import Milestones
    from vkgateway.model.errors import UnavailableError

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


async def wait_until_accepted(client: Client, tenant: Tenant) -> Tenant:
    """Return when the gateway has accepted the tenant, or after a few seconds if the gateway seems not to run.

    If the gateway does not accept the tenant, delete it and raise InputError.
    """
    from vkgateway.model.api import ACCEPTED
    from vkgateway.model.objects import is_condition_true

    current = tenant
    for _ in range(MAX_POLLS):
        current = await _get_acceptable(client, tenant, withdraw=True)
        if is_condition_true(current.status.conditions, ACCEPTED):
            break
        await asyncio.sleep(POLL_SECONDS)
    return current


async def _get_acceptable(client: Client, tenant: Tenant, *, withdraw: bool) -> Tenant:
    """Return the tenant's current state; if it can never become ready, raise the error, and delete it if requested."""
    from vkgateway.cli import cluster
    from vkgateway.cli.tenant_progress import rejection_error
    from vkgateway.kube.resources import TENANTS

    current = await cluster.get_tenant_with_retry(client, tenant.metadata.name)
    error = rejection_error(current)
    if error is None:
        return current
    if withdraw:
        await client.delete(TENANTS, tenant.metadata.name, uid=tenant.metadata.uid)
    raise error
