"""Values that the shell offers for options and arguments, from the kubeconfig and the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from vkgateway.cli.plugin.target import Target, run_async

if TYPE_CHECKING:
    from vkgateway.kube.client import Client
    from vkgateway.kube.resources import Resource

T = TypeVar("T")

_SECONDS: Final = 1.5
"""How long a server may take to list values. Completion shows nothing rather than an error."""


def contexts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the contexts of the kubeconfig."""
    return _kubeconfig_names(ctx, "contexts", incomplete)


def clusters(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the clusters of the kubeconfig."""
    return _kubeconfig_names(ctx, "clusters", incomplete)


def users(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the users of the kubeconfig."""
    return _kubeconfig_names(ctx, "users", incomplete)


def namespaces(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the namespaces of the cluster."""
    from vkgateway.kube.resources import NAMESPACES

    return _cluster_names(ctx, NAMESPACES, incomplete)


def pods(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the pods in the namespace that the options select."""
    from vkgateway.kube.resources import PODS

    return _cluster_names(ctx, PODS, incomplete)


def tenants(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the tenants of the management cluster."""
    from vkgateway.kube.resources import TENANTS

    return _cluster_names(ctx, TENANTS, incomplete)


def _kubeconfig_names(ctx: click.Context, section: str, incomplete: str) -> list[str]:
    from vkgateway.kube.kubectl_config import config_files, merge_files

    def read() -> list[str]:
        document = merge_files(config_files(_target(ctx).kubeconfig))
        return [entry["name"] for entry in document.get(section) or ()]

    return begun(or_nothing(read), incomplete)


def _cluster_names(ctx: click.Context, resource: Resource, incomplete: str) -> list[str]:
    return begun(or_nothing(lambda: run_async(_list_names)(_target(ctx), resource)), incomplete)


def _target(ctx: click.Context) -> Target:
    chosen = [
        Target(**{name: value for name, value in each.params.items() if name in Target.__slots__ and value is not None})
        for each in (ctx, ctx.find_root())
    ]
    return chosen[0].or_else(chosen[1])


async def _list_names(target: Target, resource: Resource) -> list[str]:
    from vkgateway.cli.plugin.connection import open_client

    async with open_client(target) as (client, config):
        namespace = target.namespace or config.namespace
        return await _within(names_of(client, resource, namespace if resource.namespaced else None))


async def names_of(client: Client, resource: Resource, namespace: str | None) -> list[str]:
    """Return the names of all objects of a resource, in a namespace or in the cluster."""
    import msgspec

    from vkgateway.api.objects import ObjectView

    page = await client.list_all(resource, namespace=namespace)
    decode = msgspec.json.Decoder(ObjectView).decode
    return [decode(item).metadata.name for item in page.items]


async def _within(work: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(_SECONDS):
        return await work


def or_nothing(read: Callable[[], list[str]]) -> list[str]:
    """Return the names that a function reads, or none if it fails."""
    from vkgateway.api.errors import VkgatewayError

    try:
        return read()
    except (VkgatewayError, OSError):  # includes timeouts
        return []


def begun(names: Sequence[str], incomplete: str) -> list[str]:
    """Return the names that begin like the incomplete word, in order."""
    return sorted(name for name in names if name.startswith(incomplete))
