"""Names, labels and ports of the objects that the driver creates."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from vkgateway.api.names import CONTROL_PLANE_LABEL

COMPONENT_LABEL: Final = "app.kubernetes.io/component"
API_SERVER: Final = "api"
"""Name of the Service of a tenant's API server."""
CONTROL_PLANE: Final = "control-plane"
"""Name of the Deployment of a control plane, and value of `COMPONENT_LABEL` on its pods."""
FILES: Final = "files"
"""Name of the Secret with the files of a control plane."""
PORT: Final = 6443
"""Port at which API servers listen in their pods, and port of their Services."""
MOUNT: Final = Path("/etc/kubernetes/vkgateway")
"""Directory in which containers see the files of the control plane."""


def pod_selector(tenant: str, component: str) -> dict[str, str]:
    """Return the labels that select the pods of a component."""
    return {CONTROL_PLANE_LABEL: tenant, COMPONENT_LABEL: component}


def component_labels(tenant: str, component: str) -> dict[str, str]:
    """Return the labels of an object of a tenant's control plane."""
    return {
        CONTROL_PLANE_LABEL: tenant,
        COMPONENT_LABEL: component,
        "app.kubernetes.io/name": "vkgateway-control-plane",
        "app.kubernetes.io/instance": tenant,
        "app.kubernetes.io/managed-by": "vkgateway",
    }
