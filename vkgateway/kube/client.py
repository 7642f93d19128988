"""Thin client of one API server: the verbs of the Kubernetes API on bytes.

Objects are not typed and responses are not decoded: callers decode the few fields that they need.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from vkgateway.api.names import FIELD_MANAGER
from vkgateway.api.objects import Meta
from vkgateway.kube import errors, tls
from vkgateway.kube.lists import Page, read_page, selector_params
from vkgateway.kube.requests import Params
from vkgateway.kube.resources import Resource
from vkgateway.kube.store_budget import StoreBudget
from vkgateway.kube.transport import Traffic, Transport

PatchKind = Literal["merge", "strategic", "json", "apply"]

_PATCH_TYPES: Final[dict[PatchKind, str]] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
_DRY_RUN: Final = {"dryRun": "All"}
_LIST_SECONDS: Final = 60
_ANY_VERSION: Final[Params] = {"resourceVersion": "1", "resourceVersionMatch": "NotOlderThan"}
"""Parameters of a list from the watch cache. Version 1 instead of 0, because servers ignore the limit with 0."""
_encode = msgspec.json.Encoder().encode


def encode(body: object) -> bytes:
    """Return the JSON of a msgspec struct or plain object. Bytes pass unchanged."""
    return body if isinstance(body, bytes) else _encode(body)


class Client(Transport):
    """Client with the verbs of the API. Every method raises `errors.ApiError`."""

    @classmethod
    def from_kubeconfig(
        cls,
        path: Path | str,
        *,
        context: str | None = None,
        name: str = "",
        max_connections: int = 64,
        traffic: Traffic | None = None,
    ) -> Self:
        """Return a client for a context of a kubeconfig file, by default the current context.

        After the server refuses the credentials, the client reads the file and the files that it names again.

        Raises InputError if the file is missing, malformed or refers to missing entries.
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
            traffic=traffic,
        )

    @classmethod
    def in_cluster(cls, *, name: str = "", max_connections: int = 64, traffic: Traffic | None = None) -> Self:
        """Return a client for the cluster of this process' pod, with the mounted service account."""
        from vkgateway.kube import kubeconfig

        connection = kubeconfig.in_cluster_config()
        return cls(
            connection.server,
            ssl=connection.ssl_context(),
            token=connection.token_source(),
            renewal=kubeconfig.CredentialReloader(connection, kubeconfig.in_cluster_config),
            name=name or connection.context,
            max_connections=max_connections,
            traffic=traffic,
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
        traffic: Traffic | None = None,
        store_budget: StoreBudget | None = None,
    ) -> Self:
        """Return a client with a client certificate. All three are PEM texts that are never written to a disk."""
        context = tls.client_context(ca=ca, cert=cert, key=key)
        return cls(
            server,
            ssl=context,
            name=name,
            max_connections=max_connections,
            streaming_lists=streaming_lists,
            single_server=single_server,
            traffic=traffic,
            store_budget=store_budget,
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
        """Return the JSON of an object."""
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
        """Create an object, and return the stored object or its metadata.

        `name` is for subresources only, like `token` and `eviction`. With `dry_run`, nothing is stored.
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
        """Replace an object. A `metadata.resourceVersion` in the body must be the current version."""
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
        """Patch an object, and return the stored object or its metadata.

        The kind `apply` is server-side apply; `force` takes over fields of other managers. With `dry_run`, nothing is
        stored.
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

    async def patch_status(self, resource: Resource, seen: Meta, status: object, *, kind: PatchKind = "merge") -> bytes:
        """Patch the status of the object that was `seen`, and return its metadata.

        Raises NotFound if it was deleted, and Conflict if another object has its name.
        """
        body = {"metadata": {"uid": seen.uid}, "status": status}
        namespace = seen.namespace or None
        return await self.patch(
            resource, seen.name, body, kind=kind, namespace=namespace, subresource="status", metadata_only=True
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
        """Delete an object, with its UID and resource version as preconditions if given. Return its metadata."""
        options: dict[str, object] = {}
        if uid is not None or resource_version is not None:
            preconditions = {"uid": uid, "resourceVersion": resource_version}
            options["preconditions"] = {key: value for key, value in preconditions.items() if value is not None}
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
    ) -> AsyncIterator[Page]:
        """Yield the pages of a consistent list, with `limit` objects each (fewer large objects; 0 for one page).

        With `cached`, the server answers from its watch cache, which costs less and may lag behind the store. Raises
        `errors.Gone` if the continue token expires: list again.
        """
        path = resource.path(namespace)
        params = selector_params(label_selector, field_selector)
        if limit:
            params["limit"] = limit
        position: Params = _ANY_VERSION if cached else {}
        while True:
            try:
                page = await self._get_page(path, {**params, **position}, _LIST_SECONDS)
            except errors.ResponseTooLarge:
                if limit <= 1:
                    raise
                limit = params["limit"] = max(1, limit // 8)
                continue
            yield page
            if not page.metadata.continue_:
                return
            position = {"continue": page.metadata.continue_}  # the token contains the resource version

    async def list_all(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        timeout: float = 60,
    ) -> Page:
        """Return all objects in one page. For small collections."""
        params = selector_params(label_selector, field_selector)
        return await self._get_page(resource.path(namespace), params, timeout)

    async def _get_page(self, path: str, params: Params, timeout: float) -> Page:
        answer = await self.request("GET", path, params=params, timeout=timeout)
        return read_page(answer, what=f"GET {path} at {self.name}")
