"""The parts of a bundle: what each file contains, and how it is read from a cluster or from the gateway."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from vkgateway.api.errors import VkgatewayError
from vkgateway.cli.plugin.bundle import objects
from vkgateway.cli.plugin.bundle.archive import BundleFile, IndexEntry
from vkgateway.cli.plugin.bundle.objects import MessageFilter
from vkgateway.cli.plugin.bundle.texts import message_filter, scrub
from vkgateway.cli.plugin.connection import Connection
from vkgateway.cli.plugin.rights import RefusedRequestError, refusal_hint, refusal_message
from vkgateway.kube import errors
from vkgateway.kube.resources import Resource
from vkgateway.version import __version__

if TYPE_CHECKING:
    from vkgateway.cli.plugin.status_report import ClusterStatus

Redact = Callable[[Mapping[str, Any], MessageFilter], Any]

MAX_EVENTS: Final = 5000
_WEBHOOKS: Final = tuple(
    Resource("apis/admissionregistration.k8s.io/v1", plural, kind, namespaced=False)
    for plural, kind in (
        ("validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
        ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    )
)


@dataclass(frozen=True, slots=True)
class Content:
    """Text of a file, and the number of its objects or lines."""

    text: str
    items: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file: its name, what it contains in words, and how it is read."""

    file: str
    content: str
    read: Callable[[], Awaitable[Content]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """What the parts share: connection, user, status, and whether the user asked for messages."""

    connection: Connection
    user: str
    status: ClusterStatus
    include_messages: bool = False
    tenant: str = ""
    """In the management cluster: only this tenant."""
    filter: MessageFilter = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "filter", message_filter(include=self.include_messages))

    async def read_all(self, parts: Iterable[Part]) -> list[BundleFile]:
        """Return the files of all parts. One that cannot be read has the reason in its entry."""
        return list(await asyncio.gather(*map(self._read_part, parts)))

    async def _read_part(self, part: Part) -> BundleFile:
        try:
            content = await part.read()
        except RefusedRequestError as error:
            message = refusal_message(self.user, [error.right], server=self.connection.client.server)
            hint = refusal_hint(self.user, [error.right], options=self.connection.target.kubectl_options)
            return _unread(part, message, hint=hint)
        except (VkgatewayError, OSError) as error:
            return _unread(part, problem_text(error))
        entry = IndexEntry(file=part.file, content=part.content, items=content.items)
        return BundleFile(entry=entry, text=content.text)

    async def list_redacted(
        self,
        resource: Resource,
        redact: Redact,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        chosen: Callable[[Mapping[str, Any]], bool] = lambda _: True,
    ) -> list[Any]:
        """Return the redacted objects of a kind."""
        found = []
        pages = self.connection.client.list_pages(resource, namespace=namespace, label_selector=label_selector)
        async for page in pages:
            decoded = (msgspec.json.decode(item) for item in page.items)
            found += [redact(item, self.filter) for item in decoded if chosen(item)]
        return found

    def objects_part(self, file: str, content: str, resource: Resource, redact: Redact, **selection: Any) -> Part:
        """Return the part with the redacted objects of a kind."""

        async def read() -> Content:
            return as_json(await self.list_redacted(resource, redact, **selection))

        return Part(file=file, content=content, read=read)

    def webhooks_part(self) -> Part:
        """Return the part with the cluster's webhooks, which can refuse or change requests."""

        async def read() -> Content:
            lists = [await self.list_redacted(resource, objects.redact_webhooks) for resource in _WEBHOOKS]
            return as_json([item for found in lists for item in found])

        return Part(file="webhooks.json", content="webhooks: rules, failure policy, and the called host", read=read)

    def caller_part(self) -> Part:
        """Return the part with the caller's program and connection."""

        async def read() -> Content:
            return as_json(self._caller())

        return Part(file="client.json", content="program, and kind of the caller's credentials", read=read)

    def _caller(self) -> Mapping[str, Any]:
        config = self.connection.config
        kinds = {
            "exec plugin": config.exec_plugin is not None,
            "token file": config.token_file is not None,
            "token": bool(config.token),
            "client certificate": config.cert is not None,
        }
        return {
            "vkgateway": __version__,
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}",
            "credentials": [name for name, has in kinds.items() if has],
            "verifiesServer": not config.insecure,
        }

    def status_part(self) -> Part:
        """Return the part with the cluster's version and status, whose messages are filtered."""

        async def read() -> Content:
            return as_json(msgspec.to_builtins(self._filtered_status()))

        return Part(file="status.json", content="Kubernetes release, user, and what `status` shows", read=read)

    def _filtered_status(self) -> ClusterStatus:
        def filtered(states: Sequence[Any] | None) -> Any:
            if states is None:
                return None
            return tuple(
                msgspec.structs.replace(state, message=self.filter(state.reason, state.message)) for state in states
            )

        status = self.status
        return msgspec.structs.replace(
            status,
            problems=tuple(map(scrub, status.problems)),
            checks=tuple(line.partition(":")[0] for line in status.checks),
            nodes=filtered(status.nodes),
            tenants=filtered(status.tenants),
            compute_clusters=filtered(status.compute_clusters),
        )


def as_json(value: Any) -> Content:
    """Return the content of a file with plain data."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
    return Content(text, items=len(value) if isinstance(value, list) else None)


def problem_text(error: Exception) -> str:
    """Return why something could not be read. What a server said is left out, because it may quote anything."""
    if isinstance(error, errors.ApiError):
        return f"{type(error).__name__}: HTTP status {error.status}" if error.status else type(error).__name__
    return scrub(" ".join(str(error).split()))


def newest_events(events: list[Any]) -> list[Any]:
    """Return the newest redacted events, oldest first."""
    fields = ("lastTimestamp", "eventTime", "firstTimestamp")

    def moment(event: Mapping[str, Any]) -> str:
        return next((str(event[name]) for name in fields if event.get(name)), "")

    return sorted(events, key=moment)[-MAX_EVENTS:]


def _unread(part: Part, problem: str, *, hint: str = "") -> BundleFile:
    steps = tuple(line.strip() for line in hint.splitlines())
    return BundleFile(entry=IndexEntry(file=part.file, content=part.content, problem=problem, steps=steps))
