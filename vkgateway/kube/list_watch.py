"""Lists and watches of the objects of one kind that selectors match."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final

from vkgateway.api.objects import decode_object
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.lists import Page, selector_params
from vkgateway.kube.resources import Resource
from vkgateway.kube.response_streams import ResponseStream

_OVERDUE_SECONDS: Final = 60.0
"""Seconds after the requested duration until the client ends the watch."""


class ListWatch:
    """Objects of one kind at one server, in a namespace or everywhere, that the selectors match."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> None:
        self.client = client
        self.resource = resource
        self.description: Final = f"GET {resource.path(namespace)} at {client.name}"
        self._path: Final = resource.path(namespace)
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector

    def list_pages(self, *, limit: int, cached: bool) -> AsyncIterator[Page]:
        """Yield the pages of a list, see `Client.list_pages`."""
        return self.client.list_pages(
            self.resource,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            limit=limit,
            cached=cached,
        )

    def open_watch(
        self, version: str, *, seconds: int, inactivity: float
    ) -> AbstractAsyncContextManager[ResponseStream]:
        """Open a watch from a resource version, or with a streaming list without one. It ends after `seconds`."""
        start: dict[str, str | bool] = (
            {"resourceVersion": version}
            if version
            else {"sendInitialEvents": True, "resourceVersionMatch": "NotOlderThan"}
        )
        return self.client.open_watch(
            self._path,
            {
                "watch": True,
                "allowWatchBookmarks": True,
                "timeoutSeconds": seconds,
                **start,
                **selector_params(self._label_selector, self._field_selector),
            },
            inactivity=inactivity,
            longest=seconds + _OVERDUE_SECONDS,
        )

    async def read_chunk(self, stream: ResponseStream) -> bytes:
        """Return the next bytes of a watch, or no bytes at its end. Raises errors.Unreachable."""
        try:
            return await stream.read()
        except OSError as error:
            raise self.client.unreachable_error("GET", self._path, error) from error

    async def check_version(self, known: str) -> None:
        """Raise VersionWentBackError if the server's version is lower than the known version.

        Its datastore was then restored from a backup. A server accepts a watch from a future version. The watch is
        silent until the server reaches that version, and never reports the changes that the restore reverted.
        """
        page = await self.client.request("GET", self._path, params={"limit": 1})
        version = decode_object(page).metadata.resource_version
        if version.isdigit() and known.isdigit() and int(version) < int(known):
            raise VersionWentBackError(
                f"{self.description}: resource version went back from {known} to {version}", status=410
            )


class VersionWentBackError(errors.Gone):
    """The datastore of the server was restored from a backup, so that resource versions are not unique."""
