"""Shell completion through kubectl: the program `kubectl_complete-vkgateway`, and values from kubeconfig and cluster.

kubectl passes the words after `kubectl vkgateway`, the last of which is incomplete, and reads one value a line and a
directive of cobra (https://github.com/spf13/cobra/blob/main/site/content/completions/_index.md).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from vkgateway.cli.plugin.options import Target
    from vkgateway.kube.client import Client
    from vkgateway.kube.resources import Resource

T = TypeVar("T")

_NO_FILES: Final = ":4"
"""Directive: the shell offers no files besides the values."""
_FILES: Final = ":0"
_SECONDS: Final = 1.5
"""How long a server may take to list values. Completion shows nothing rather than an error."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program `kubectl_complete-vkgateway`: print the completions of the last word."""
    words = list(sys.argv[1:] if argv is None else argv)
    for line in complete_words(words[:-1], words[-1] if words else ""):
        click.echo(line)


def complete_words(words: Sequence[str], incomplete: str) -> list[str]:
    """Return the lines for kubectl: values with their descriptions, and the directive."""
    from click.shell_completion import ShellComplete

    from vkgateway.cli.plugin.main import plugin

    option, equals, begun = incomplete.partition("=")
    if equals and option.startswith("--"):
        found = ShellComplete(plugin, {}, "kubectl vkgateway", "").get_completions([*words, option], begun)
        prefix = f"{option}="
    else:
        found = ShellComplete(plugin, {}, "kubectl vkgateway", "").get_completions(list(words), incomplete)
        prefix = ""
    if any(item.type != "plain" for item in found):
        return [_FILES]
    lines = [f"{prefix}{item.value}\t{item.help}" if item.help else f"{prefix}{item.value}" for item in found]
    return [*lines, _NO_FILES]


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
    from vkgateway.cli.plugin.options import run_async

    return begun(or_nothing(lambda: run_async(_list_names)(_target(ctx), resource)), incomplete)


def _target(ctx: click.Context) -> Target:
    from vkgateway.cli.plugin.options import Target

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
