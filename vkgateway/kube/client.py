"""A thin client of one API server: its verbs, on bytes.

Objects are not typed here and answers are not decoded: callers that look at an answer decode the few fields
they need.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from vkgateway.kube import errors, tls
from vkgateway.kube.lists import Page, read_page, selector_params
from vkgateway.kube.requests import Params
from vkgateway.kube.resources import Resource
from vkgateway.kube.transport import Transport
from vkgateway.model.names import FIELD_MANAGER

PatchKind = Literal["merge", "strategic", "json", "apply"]

_PATCH_TYPES: Final[dict[PatchKind, str]] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
_DRY_RUN: Final = {"dryRun": "All"}
_ANY_VERSION: Final[Params] = {"resourceVersion": "1", "resourceVersionMatch": "NotOlderThan"}
"""What servers answer from their watch caches, by pages: 0 would do, too, but then the limit is passed over."""
_encode = msgspec.json.Encoder().encode


def encode(body: object) -> bytes:
    """JSON bytes of a msgspec struct or plain object; bytes are taken as already encoded."""
    return body if isinstance(body, bytes) else _encode(body)


class Client(Transport):
    """The verbs of the API, over a `Transport`. Every method raises `errors.ApiError`."""

    @classmethod
    def from_kubeconfig(
        cls, path: Path | str, *, context: str | None = None, name: str = "", max_connections: int = 64
    ) -> Self:
        """A client as a kubeconfig file describes it (its current context unless another is named).

        The file, and those that it names, are read again once the server does not know us any more.

        Raises InputError where the file is missing, malformed or lacks what it refers to.
        """
        from vkgateway.kube import kubeconfig

        def read() -> kubeconfig.ClientConfig:
            return kubeconfig.load(path).client_config(context)

        connection = read()
        return cls(
            connection.server,
            ssl=connection.ssl_context(),
            token=connection.token_source(),
            renewal=kubeconfig.CredentialReloader(connection, read),
            name=name or connection.context,
            max_connections=max_connections,
            server_hostname=connection.tls_server_name or None,
        )

    @classmethod
    def in_cluster(cls, *, name: str = "", max_connections: int = 64) -> Self:
        """A client for the cluster whose pod this process runs in, by the mounted service account."""
        from vkgateway.kube import kubeconfig

        connection = kubeconfig.in_cluster_config()
        return cls(
            connection.server,
            ssl=connection.ssl_context(),
            token=connection.token_source(),
            renewal=kubeconfig.CredentialReloader(connection, kubeconfig.in_cluster_config),
            name=name or connection.context,
            max_connections=max_connections,
        )

    @classmethod
    def from_pem(
        cls,
        server: str,
        *,
        ca: bytes | str,
        cert: bytes | str,
        key: bytes | str,
        name: str = "",
        max_connections: int = 64,
        streaming_lists: bool = True,
        single_server: bool = False,
    ) -> Self:
        """A client that proves itself by a certificate; all three are PEM texts, none is ever written to a
        disk.
        """
        context = tls.client_context(ca=ca, cert=cert, key=key)
        return cls(
            server,
            ssl=context,
            name=name,
            max_connections=max_connections,
            streaming_lists=streaming_lists,
            single_server=single_server,
        )

    async def get(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        timeout: float = 30,
    ) -> bytes:
        """The JSON of one object."""
        return await self.request("GET", resource.path(namespace, name, subresource), timeout=timeout)

    async def create(
        self,
        resource: Resource,
        body: object,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        metadata_only: bool = False,
        dry_run: bool = False,
        timeout: float = 30,
    ) -> bytes:
        """Create an object (`name` only with a subresource, as for `token` and `eviction`); returns it as
        stored, or its metadata. With `dry_run` it is returned as it would be, and nothing is stored.
        """
        path = resource.path(namespace, name, subresource)
        params = _DRY_RUN if dry_run else None
        return await self.request(
            "POST", path, params=params, body=encode(body), metadata_only=metadata_only, timeout=timeout
        )

    async def replace(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        timeout: float = 30,
    ) -> bytes:
        """Replace an object; a `metadata.resourceVersion` in it must still be the current one."""
        path = resource.path(namespace, name, subresource)
        return await self.request("PUT", path, body=encode(body), timeout=timeout)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        kind: PatchKind = "merge",
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str = FIELD_MANAGER,
        force: bool = True,
        metadata_only: bool = False,
        dry_run: bool = False,
        timeout: float = 30,
    ) -> bytes:
        """Patch an object; `apply` is server-side apply, where `force` takes over fields that others own.

        Returns the object as stored, or its metadata; with `dry_run` as it would be, and nothing is stored.
        """
        params: dict[str, str | int | bool] = {"fieldManager": field_manager}
        if kind == "apply":
            params["force"] = force
        if dry_run:
            params |= _DRY_RUN
        return await self.request(
            "PATCH",
            resource.path(namespace, name, subresource),
            params=params,
            body=encode(body),
            content_type=_PATCH_TYPES[kind],
            metadata_only=metadata_only,
            timeout=timeout,
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        propagation_policy: Literal["Background", "Foreground", "Orphan"] | None = None,
        timeout: float = 30,
    ) -> bytes:
        """Delete an object, only if it still has that UID and resource version where they are given.

        Of what the server answers, the metadata is asked for.
        """
        options: dict[str, object] = {}
        if uid is not None or resource_version is not None:
            wanted = {"uid": uid, "resourceVersion": resource_version}
            options["preconditions"] = {key: value for key, value in wanted.items() if value is not None}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if propagation_policy is not None:
            options["propagationPolicy"] = propagation_policy
        body = _encode({"kind": "DeleteOptions", "apiVersion": "v1"} | options) if options else None
        return await self.request(
            "DELETE", resource.path(namespace, name), body=body, metadata_only=True, timeout=timeout
        )

    async def list_pages(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
        cached: bool = False,
        timeout: float = 60,
    ) -> AsyncIterator[Page]:
        """A consistent list, page by page (`limit` objects each, fewer where they are large; 0 for all at once).

        With `cached` it is as the server has it in its watch cache, which may be a little behind its store and costs a
        fraction. Raises `errors.Gone` where the continue token has expired meanwhile: begin again.
        """
        path = resource.path(namespace)
        params = selector_params(label_selector, field_selector)
        if limit:
            params["limit"] = limit
        place: Params = _ANY_VERSION if cached else {}
        while True:
            try:
                page = await self._get_page(path, {**params, **place}, timeout)
            except errors.ResponseTooLarge:
                if limit <= 1:
                    raise
                limit = params["limit"] = max(1, limit // 8)
                continue
            yield page
            if not page.metadata.continue_:
                return
            place = {"continue": page.metadata.continue_}  # which says of what version the rest is, too

    async def list_all(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        timeout: float = 60,
    ) -> Page:
        """All objects in one answer, for what is known to be few."""
        params = selector_params(label_selector, field_selector)
        return await self._get_page(resource.path(namespace), params, timeout)

    async def _get_page(self, path: str, params: Params, timeout: float) -> Page:
        answer = await self.request("GET", path, params=params, timeout=timeout)
        return read_page(answer, what=f"GET {path} at {self.name}")
