"""How a ComputeCluster is reached: by the kubeconfig in its Secret, or as the management cluster itself."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec

from vkgateway.kube import errors, kubeconfig
from vkgateway.kube.client import Client
from vkgateway.kube.resources import SECRETS
from vkgateway.model.api import KubeconfigSecret
from vkgateway.model.errors import InputError

_FORBIDDEN_KEYS = frozenset(
    {"exec", "auth-provider", "tokenFile", "certificate-authority", "client-certificate", "client-key"}
)
"""What would make us read a file or run a program of this machine."""


class _Secret(msgspec.Struct):
    data: dict[str, str] = {}


async def read_connection(management: Client, secret: KubeconfigSecret | None) -> kubeconfig.ClientConfig | None:
    """Return what the connection is made from; None for the management cluster itself.

    Raises InputError where the Secret or its key is missing or its kubeconfig cannot be used.
    """
    if secret is None:
        return None
    where = f"Secret {secret.namespace}/{secret.name}"
    try:
        answer = await management.get(SECRETS, secret.name, namespace=secret.namespace)
    except errors.NotFound as error:
        raise InputError(f"{where} with the kubeconfig does not exist") from error
    found = msgspec.json.decode(answer, type=_Secret)
    if secret.key not in found.data:
        raise InputError(f"{where} has no key {secret.key!r}; it has: {', '.join(sorted(found.data))}")
    text = base64.b64decode(found.data[secret.key]).decode(errors="replace")
    return parse_connection(text, where=f"in {where}")


def parse_connection(text: str, *, where: str) -> kubeconfig.ClientConfig:
    """Read a kubeconfig that came in a Secret: it must carry everything itself.

    Raises InputError where it names files or programs of this machine, which no Secret may make us use.
    """
    document = kubeconfig.parse(text, where=where)
    for section, kind in (("clusters", "cluster"), ("users", "user")):
        for entry in document.get(section) or []:
            for key in _FORBIDDEN_KEYS & set(entry.get(kind) or {}):
                raise InputError(f"the kubeconfig {where} uses {key}; put what it needs inline")
    return kubeconfig.Kubeconfig(document=document, path=Path(f"/{where}")).client_config()
