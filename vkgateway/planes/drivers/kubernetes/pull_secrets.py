"""Copies of registry credentials in the namespaces of control planes: kubelets read them in the pod's namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.kube import errors
from vkgateway.kube.apply import Document
from vkgateway.kube.client import Client
from vkgateway.kube.resources import SECRETS
from vkgateway.planes.drivers.kubernetes.names import CONTROL_PLANE, component_labels


class _Credentials(msgspec.Struct):
    type: str = "Opaque"
    data: dict[str, str] = {}


_decode_credentials: Final = msgspec.json.Decoder(_Credentials).decode


async def pull_secret_copies(client: Client, names: Sequence[str], *, tenant: str, to: str) -> list[Document]:
    """Return copies of Secrets with registry credentials for the namespace of a tenant's control plane.

    Raises:
        UnavailableError: a Secret does not exist.
    """
    labels = component_labels(tenant, CONTROL_PLANE)
    return [await _copy(client, name, labels=labels, namespace=to) for name in names]


async def _copy(client: Client, name: str, *, labels: dict[str, str], namespace: str) -> Document:
    try:
        found = _decode_credentials(await client.get(SECRETS, name, namespace=SYSTEM_NAMESPACE))
    except errors.NotFound as error:
        raise UnavailableError(
            f"Secret {SYSTEM_NAMESPACE}/{name} of controlPlanes.parameters.imagePullSecrets does not exist",
            hint=f"Create it: kubectl create secret docker-registry {name} -n {SYSTEM_NAMESPACE} ...",
        ) from error
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "type": found.type,
        "data": found.data,
    }
