"""Kueue outside a cluster: the objects that its controller expects, its configuration and its command line.

The controller runs as released, without webhooks for Kueue's objects and for pods. It issues its own certificate,
writes it to a Secret, and waits until the content of the Secret is in its directory, as a kubelet would mount it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

NAMESPACE: Final = "kueue-system"
SECRET: Final = "kueue-webhook-server-cert"  # noqa: S105 # the name of an object
"""Secret of the controller's certificate."""
API_VERSION: Final = "v1beta2"
"""The only version of Kueue's objects that is served. Another one would need the conversion webhook."""


def read_definitions(program: Path, *, webhooks: int) -> Iterator[dict[str, Any]]:
    """Yield the definitions of Kueue's objects; `webhooks` is the port of the controller's webhooks.

    `program` is the directory with the program and its manifests.
    """
    call = {"conversionReviewVersions": ["v1"], "clientConfig": {"url": f"https://127.0.0.1:{webhooks}/convert"}}
    for file in sorted((program / "crds").glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        versions = definition["spec"]["versions"]
        for version in versions:
            version["served"] = version["name"] == API_VERSION or len(versions) == 1
        definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": call}
        yield definition


def expected_objects() -> list[dict[str, Any]]:
    """Return the namespace, the empty Secret, and webhook configurations without webhooks."""
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE}},
        *(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": f"{kind}WebhookConfiguration",
                "metadata": {"name": f"kueue-{kind.lower()}-webhook-configuration"},
                "webhooks": [],
            }
            for kind in ("Mutating", "Validating")
        ),
    ]


def prepare_controller(
    program: Path,
    folder: Path,
    *,
    webhooks: int,
    health: int,
    rate: int | None = None,
    gates: Sequence[str] = (),
    ready_seconds: int | None = None,
) -> tuple[str, ...]:
    """Write the configuration to `folder`, and return the command line. The kubeconfig is the variable KUBECONFIG.

    `webhooks` and `health` are ports. `rate` is the limit of the controller's requests per second, with twice as many
    at once; None: Kueue's default. `gates` are feature gates that differ from Kueue's defaults. After `ready_seconds`,
    Kueue evicts gangs whose pods are not all ready; None: never.
    """
    settings: dict[str, Any] = {
        "apiVersion": f"config.kueue.x-k8s.io/{API_VERSION}",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True},
        "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(certificate_folder(folder))},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "integrations": {"frameworks": ["batch/job"]},
    }
    if rate is not None:
        settings["clientConnection"] = {"qps": rate, "burst": 2 * rate}
    if ready_seconds is not None:
        settings["waitForPodsReady"] = {"timeout": f"{ready_seconds}s"}
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    changed = ",".join(("VisibilityOnDemand=false", *gates))
    return (str(program / "kueue"), f"--config={folder / 'settings.yaml'}", f"--feature-gates={changed}")


def certificate_folder(folder: Path) -> Path:
    """Return the directory in which the controller expects its certificate."""
    return folder / "certificates"


def mount_certificate(folder: Path, data: Mapping[str, str]) -> None:
    """Write the content of the Secret where the controller expects it, as a kubelet does for a volume."""
    target = certificate_folder(folder)
    target.mkdir()
    for key, value in data.items():
        (target / key).write_bytes(base64.b64decode(value))
