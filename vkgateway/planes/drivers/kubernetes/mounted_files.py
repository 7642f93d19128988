"""Quick delivery of changed Secrets to running pods.

A kubelet updates mounted Secrets about once a minute, and also when the pod changes. So the gateway annotates the pods
with the digest of the content.
https://kubernetes.io/docs/concepts/configuration/configmap/#mounted-configmaps-are-updated-automatically
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from vkgateway.api.objects import decode_object
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import PODS

_ANNOTATION: Final = "vkgateway.io/mounted"


class MountedFiles:
    """Content that pods have mounted, by namespace and component; a new process writes each annotation once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._delivered: dict[tuple[str, str], str] = {}

    async def deliver(
        self, content: Mapping[str, bytes], *, namespace: str, component: str, labels: Mapping[str, str]
    ) -> None:
        """Let the kubelets update the mounted content of the pods with these labels, if it changed.

        Pods that start later read the new content anyway. Raises ApiError.
        """
        wanted = hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:16]
        if self._delivered.get((namespace, component)) == wanted:
            return
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        async for page in self._client.list_pages(PODS, namespace=namespace, label_selector=selector):
            for pod in (decode_object(item).metadata for item in page.items):
                if pod.annotations.get(_ANNOTATION) != wanted:
                    await self._annotate(pod.name, namespace=namespace, digest=wanted)
        self._delivered[namespace, component] = wanted

    def forget(self, *, namespace: str, component: str) -> None:
        """Forget the content of a component that is deleted."""
        self._delivered.pop((namespace, component), None)

    async def _annotate(self, pod: str, *, namespace: str, digest: str) -> None:
        try:
            await self._client.patch(
                PODS, pod, {"metadata": {"annotations": {_ANNOTATION: digest}}}, namespace=namespace
            )
        except errors.NotFound:
            return
