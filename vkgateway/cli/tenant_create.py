"""`vkgateway tenant create`: make the Tenant object, then follow its conditions until it is ready."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vkgateway.cli.gateway_state import GatewayEndpoint, gateway_option
from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.output import FORMATS, serialize
from vkgateway.cli.progress import Progress

if TYPE_CHECKING:
    from vkgateway.kube.client import Client
    from vkgateway.model.api import Tenant

POLL_SECONDS = 0.2
MAX_POLLS = 15
GATEWAY_WAIT_SECONDS = 30.0
"""A gateway that runs looks at a new tenant at once; one that starts needs a few seconds."""

EPILOG = """\b
Examples:
  vkgateway tenant create alpha --pool a100:guarantee=nvidia.com/gpu=8,limit=nvidia.com/gpu=16
  vkgateway tenant create beta --pool a100 --pool v100.local --no-wait
  vkgateway tenant create gamma --pool real --storage-class local
  vkgateway tenant create -f beta.yaml
  vkgateway tenant create alpha --pool a100 --dry-run > alpha.yaml; kubectl apply -f alpha.yaml
"""


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
@click.option("-f", "--file", type=click.Path(path_type=Path), help="Manifest of a Tenant; options go over it.")
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="POOL[.CLUSTER][:guarantee=RES=QTY,...,limit=RES=QTY,...,weight=N,cells=8+8+1]",
    help="A pool it may use; again for more. Cluster: local unless said.",
)
@click.option("--template", help="Tenant template. [default: default]")
@click.option("--kubernetes-version", metavar="X.Y.Z", help="Its Kubernetes. [default: that of `vkgateway version`]")
@click.option(
    "--pod-security",
    type=click.Choice(["privileged", "baseline", "restricted"]),
    help="What its pods may do. [default: baseline]",
)
@click.option(
    "--storage-class",
    "storage_classes",
    multiple=True,
    metavar="NAME",
    help="A storage class that its claims may name, '*' for all; again for more.",
)
@click.option(
    "--preemption",
    type=click.Choice(["LowerPriority", "Never"]),
    help="Whether its higher priorities preempt its lower ones. [default: LowerPriority]",
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port of its API server. [default: a free one]")
@click.option("--subject-alt-name", "names", multiple=True, help="Another name its API server is reached by.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it is ready.")
@click.option("--timeout", type=click.FloatRange(min=1), default=300.0, show_default=True, help="Seconds to wait.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check it, print the object, and say what its guarantees would mean now; make nothing.",
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
    """Make tenant NAME: the same as `kubectl apply` of its Tenant object, and then wait for it.

    The name is a DNS label of at most 32 characters that starts with a letter and holds no double dash.
    """
    from vkgateway.cli import cluster, tenant_manifest, tenant_spec, whatif_tenant

    given = tenant_manifest.read_manifest(file) if file else None
    wanted = tenant_spec.apply_options(
        tenant_spec.with_name(given, name),
        template=template,
        kubernetes_version=kubernetes_version,
        pools=pools,
        pod_security=pod_security,
        storage_classes=storage_classes,
        preemption=preemption,
        port=port,
        subject_alt_names=names,
    )
    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        await validate_tenant(client, wanted)
        if dry_run:
            click.echo(serialize(tenant_spec.to_manifest(wanted), output=output or "yaml"), nl=False)
            await whatif_tenant.print_what_if(wanted, data_dir, gateway)
            return
        made = await create_tenant(client, wanted)
        made = (
            await wait_until_ready(client, made, timeout=timeout) if wait else await wait_until_accepted(client, made)
        )
        _print_result(made, output=output, waited=wait)


def _print_result(made: Tenant, *, output: str | None, waited: bool) -> None:
    import msgspec

    name = made.metadata.name
    if output == "name":
        click.echo(name)
    elif output:
        click.echo(serialize(msgspec.to_builtins(made), output=output), nl=False)
    elif waited:
        click.echo(f"Go on with: vkgateway tenant kubeconfig {name} -f {name}.kubeconfig", err=True)
    else:
        click.echo(f"Tenant {name} is being made; see: vkgateway tenant describe {name}", err=True)


async def validate_tenant(client: Client, wanted: Tenant) -> None:
    """Refuse before anything is made what the gateway would refuse.

    Raises InputError with the field, its value and the way out; ConflictError where the name is taken.
    """
    from vkgateway.cli import cluster
    from vkgateway.gateway.acceptance import find_objections, pool_offers
    from vkgateway.model.errors import ConflictError, InputError

    there = await cluster.list_tenants(client)
    name = wanted.metadata.name
    if any(tenant.metadata.name == name for tenant in there):
        raise ConflictError(
            f"tenant {name!r} is there already",
            hint=f"Take another name, or see `vkgateway tenant describe {name}`.",
        )
    computes = await cluster.list_compute_clusters(client)
    # Templates are the daemon's own: it alone knows which there are.
    found = find_objections(wanted, offers=pool_offers(computes, others=there))
    if found:
        raise InputError(
            f"tenant {name!r} cannot be had: {found[0]}", hint="\n       ".join(str(rest) for rest in found[1:])
        )


async def create_tenant(client: Client, wanted: Tenant) -> Tenant:
    """Create the object. Raises ConflictError where somebody else was quicker with the name."""
    import msgspec

    from vkgateway.cli import tenant_spec
    from vkgateway.kube import errors
    from vkgateway.kube.resources import TENANTS
    from vkgateway.model.api import Tenant
    from vkgateway.model.errors import ConflictError

    try:
        answer = await client.create(TENANTS, tenant_spec.to_manifest(wanted))
    except errors.AlreadyExists as error:
        raise ConflictError(f"tenant {wanted.metadata.name!r} is there already") from error
    return msgspec.json.decode(answer, type=Tenant)


async def wait_until_ready(client: Client, made: Tenant, *, timeout: float) -> Tenant:
    """Tell each condition as it comes true, until the tenant is ready.

    A tenant that the gateway does not accept is taken back. Raises InputError then, UnavailableError after `timeout`
    seconds.
    """
    from vkgateway.cli.tenant_progress import Milestones
    from vkgateway.model.errors import UnavailableError

    name = made.metadata.name
    milestones = Milestones()
    with Progress() as progress:
        progress(f"tenant {name}: waiting for the gateway")
        while True:
            now = await _get_or_withdraw(client, made)
            for line in milestones.new_milestones(now):
                progress.done(line)
            if milestones.is_complete:
                progress.done(f"tenant {name} is ready")
                return now
            if now.status.observed_generation == 0 and progress.elapsed_seconds > min(GATEWAY_WAIT_SECONDS, timeout):
                raise UnavailableError(
                    (
                        f"the gateway has not looked at tenant {name!r} in "
                        f"{progress.elapsed_seconds:.0f} s: it does not run"
                    ),
                    hint="See `vkgateway status`, start it with `vkgateway up` (or `vkgateway serve`); the tenant is"
                    f" made then. Take it back with `vkgateway tenant delete {name}`.",
                )
            if progress.elapsed_seconds > timeout:
                raise UnavailableError(
                    f"tenant {name!r} is not ready after {timeout:.0f} s: {milestones.next_milestone(now)}",
                    hint=f"The gateway goes on trying; see `vkgateway tenant describe {name}`.",
                )
            progress(f"tenant {name}: {milestones.next_milestone(now)}")
            await asyncio.sleep(POLL_SECONDS)


async def wait_until_accepted(client: Client, made: Tenant) -> Tenant:
    """Return once the gateway has accepted the tenant, or does not seem to be running.

    Raises InputError, and takes the tenant back, where it is not accepted.
    """
    from vkgateway.model.api import ACCEPTED
    from vkgateway.model.objects import is_condition_true

    now = made
    for _ in range(MAX_POLLS):
        now = await _get_or_withdraw(client, made)
        if is_condition_true(now.status.conditions, ACCEPTED):
            break
        await asyncio.sleep(POLL_SECONDS)
    return now


async def _get_or_withdraw(client: Client, made: Tenant) -> Tenant:
    """Return the tenant as it is now; one that cannot be had, however long one waits, is taken back first."""
    from vkgateway.cli import cluster
    from vkgateway.cli.tenant_progress import rejection_error
    from vkgateway.kube.resources import TENANTS

    now = await cluster.get_tenant_with_retry(client, made.metadata.name)
    error = rejection_error(now)
    if error is None:
        return now
    await client.delete(TENANTS, made.metadata.name, uid=made.metadata.uid)
    raise error
