"""Connection to a ComputeCluster: the kubeconfig in its Secret, or the management cluster itself."""

from __future__ import annotations

import base64
from pathlib import Path

from vkgateway.api.errors import InputError
from vkgateway.api.objects import decode_secret
from vkgateway.api.types import KubeconfigSecret
from vkgateway.kube import errors, kubeconfig
from vkgateway.kube.client import Client
from vkgateway.kube.resources import SECRETS

_FORBIDDEN_KEYS = frozenset(
    {"exec", "auth-provider", "tokenFile", "certificate-authority", "client-certificate", "client-key"}
)
"""Keys that would make the gateway read a file or run a program of its machine."""


async def read_connection(management: Client, secret: KubeconfigSecret | None) -> kubeconfig.ClientConfig | None:
    """Return the client configuration of the connection; None for the management cluster itself.

    Raises InputError if the Secret or its key is missing, or if the kubeconfig is not usable.
    """
    if secret is None:
        return None
    where = f"Secret {secret.namespace}/{secret.name}"
    try:
        answer = await management.get(SECRETS, secret.name, namespace=secret.namespace)
    except errors.NotFound as error:
        raise InputError(f"{where} for the kubeconfig does not exist") from error
    found = decode_secret(answer)
    if secret.key not in found.data:
        raise InputError(f"{where} has no key {secret.key!r}; available keys: {', '.join(sorted(found.data))}")
    text = base64.b64decode(found.data[secret.key]).decode(errors="replace")
    return parse_connection(text, where=f"in {where}")


def parse_connection(text: str, *, where: str) -> kubeconfig.ClientConfig:
    """Parse a kubeconfig from a Secret, which must be self-contained.

    Raises InputError if it refers to files or programs of the gateway's machine.
    """
    document = kubeconfig.parse(text, where=where)
    for section, kind in (("clusters", "cluster"), ("users", "user")):
        for entry in document.get(section) or []:
            for key in _FORBIDDEN_KEYS & set(entry.get(kind) or {}):
                raise InputError(f"the kubeconfig {where} uses {key}; embed the data instead")
    return kubeconfig.Kubeconfig(document=document, path=Path(f"/{where}")).client_config()
