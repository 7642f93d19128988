"""Service account tokens of compute pods: the tenant's own, bound to the pod, short-lived and refreshed."""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from vkgateway.api import times
from vkgateway.api.errors import ConflictError
from vkgateway.api.names import UID_ANNOTATION, compute_metadata, compute_namespace, token_secret_name
from vkgateway.api.objects import Meta, ObjectView
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.pods.translation.pod_references import TokenSource
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.runtime.views.annotations import REFRESH_AT, TOKEN_OF
from vkgateway.runtime.views.ownership import Key, owned_by

_REFRESH_SHARE: Final = 0.8
_RETRY_SECONDS: Final = 60.0
_WRITTEN_GRACE: Final = 30.0
"""Time in which the watch shows a Secret that was written; until then, the Secret is not written again."""


class _TokenStatus(msgspec.Struct, rename="camel"):
    token: str
    expiration_timestamp: str


class _TokenRequest(msgspec.Struct):
    status: _TokenStatus


class ServiceAccountTokens:
    """Requester of one tenant's tokens from the tenant cluster, which it keeps in Secrets of the compute clusters."""

    def __init__(self, scope: TenantScope) -> None:
        self._tenant = scope.name
        self._client = scope.client
        self._clock = scope.clock
        self._written: dict[Key, tuple[float, float]] = {}
        """Refresh time and end of the grace of Secrets that the watch has not shown yet."""

    def refresh_due_in(self, link: ComputeLink, pod: Meta) -> float | None:
        """Return the seconds until the pod's tokens must be refreshed; None if its Secret does not exist."""
        name = compute_namespace(self._tenant, pod.namespace), token_secret_name(pod.name, pod.uid)
        secret, now = link.copies["secrets"].store.get(name), self._clock.time()
        shown = float(secret.metadata.annotations.get(REFRESH_AT, "0")) if secret is not None else None
        written, until = self._written.get(name, (0.0, 0.0))
        if now < until and (shown is None or shown < written):
            return min(written, until) - now
        self._written.pop(name, None)
        return shown - now if shown is not None else None

    async def ensure_secret(
        self, link: ComputeLink, pod: Meta, service_account: str, sources: Sequence[TokenSource]
    ) -> float:
        """Create or refresh the pod's Secret of tokens where needed; return the seconds until the next refresh."""
        due = self.refresh_due_in(link, pod)
        if due is not None and due > 0:
            return due
        now = self._clock.time()
        data: dict[str, str] = {}
        refresh_at = float("inf")
        for source in sources:
            status = await self._request_token(pod, service_account, source)
            data[source.key] = base64.b64encode(status.token.encode()).decode()
            expires = times.parse_time(status.expiration_timestamp).timestamp()
            refresh_at = min(refresh_at, now + (expires - now) * _REFRESH_SHARE)
        secret = self._build_secret(pod, data, refresh_at)
        await self._write_secret(link, secret)
        name = secret["metadata"]["namespace"], secret["metadata"]["name"]
        self._written[name] = float(secret["metadata"]["annotations"][REFRESH_AT]), now + _WRITTEN_GRACE
        return max(refresh_at - now, _RETRY_SECONDS)

    async def delete_unused(self, link: ComputeLink, alive: Collection[str]) -> None:
        """Delete the Secrets of deleted pods; `alive` holds the UIDs of the tenant pods that exist."""
        for secret in list(link.copies["secrets"].store.values()):
            metadata = secret.metadata
            uid = metadata.annotations.get(UID_ANNOTATION, "")
            if TOKEN_OF in metadata.annotations and owned_by(self._tenant, metadata) and uid not in alive:
                await self._delete_secret(link, metadata)

    async def delete_secret(self, link: ComputeLink, pod: Key, uid: str) -> None:
        """Delete the Secret of a deleted pod."""
        name = compute_namespace(self._tenant, pod[0]), token_secret_name(pod[1], uid)
        self._written.pop(name, None)
        secret = link.copies["secrets"].store.get(name)
        if secret is not None and TOKEN_OF in secret.metadata.annotations and owned_by(self._tenant, secret.metadata):
            await self._delete_secret(link, secret.metadata)

    async def _delete_secret(self, link: ComputeLink, secret: Meta) -> None:
        try:
            await link.client.delete(resources.SECRETS, secret.name, namespace=secret.namespace, uid=secret.uid)
        except (errors.NotFound, errors.Conflict):
            return

    async def _request_token(self, pod: Meta, service_account: str, source: TokenSource) -> _TokenStatus:
        """Request a token from the tenant's API server, as kubelets do (TokenRequest, bound to the pod by its UID)."""
        spec: dict[str, Any] = {
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid},
            "expirationSeconds": source.expiration_seconds,
        }
        if source.audience:
            spec["audiences"] = [source.audience]
        answer = await self._client.create(
            resources.SERVICE_ACCOUNTS,
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
            namespace=pod.namespace,
            name=service_account,
            subresource="token",
        )
        return msgspec.json.decode(answer, type=_TokenRequest).status

    def _build_secret(self, pod: Meta, data: dict[str, str], refresh_at: float) -> dict[str, Any]:
        metadata = compute_metadata(self._tenant, pod.namespace, token_secret_name(pod.name, pod.uid), pod.uid)
        metadata["annotations"] |= {TOKEN_OF: pod.name, REFRESH_AT: f"{refresh_at:.0f}"}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": metadata,
            "data": data,
        }

    async def _write_secret(self, link: ComputeLink, secret: dict[str, Any]) -> None:
        metadata = secret["metadata"]
        try:
            await link.client.create(resources.SECRETS, secret, namespace=metadata["namespace"], metadata_only=True)
        except errors.AlreadyExists:
            await self._replace_secret(link, secret)

    async def _replace_secret(self, link: ComputeLink, secret: dict[str, Any]) -> None:
        metadata = secret["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        found = msgspec.json.decode(
            await link.client.get(resources.SECRETS, name, namespace=namespace), type=ObjectView
        ).metadata
        wanted = metadata["annotations"]
        same_pod = found.annotations.get(UID_ANNOTATION) == wanted[UID_ANNOTATION]
        if not owned_by(self._tenant, found) or not same_pod:
            raise ConflictError(f"the Secret for the tokens of pod {wanted[TOKEN_OF]} is taken below")
        await link.client.replace(resources.SECRETS, name, secret, namespace=namespace)
