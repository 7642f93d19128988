"""An operator for Sweeps: each runs its trials as one Job, and leaves a note of itself when it is deleted.

Two replicas run; the one with the higher priority works, the other stands by. Both serve the webhook.
"""

from __future__ import annotations

import os
import random
from typing import Any

import kopf
import kubernetes

MOST_TRIALS = 8
NOTES = "sweeps-gone"
LABEL = "example.org/sweep"
ME = os.environ["POD_ID"]


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Say how likely this one leads, by which finalizer Sweeps are held, and where the webhook is served."""
    kubernetes.config.load_incluster_config()
    settings.peering.priority = random.randrange(1, 1 << 15)
    settings.peering.lifetime = 15
    settings.persistence.finalizer = "example.org/sweeps"
    settings.admission.server = kopf.WebhookServer(
        addr="0.0.0.0", port=9443, certfile="/tls/tls.crt", pkeyfile="/tls/tls.key"
    )


@kopf.on.validate("example.org", "v1", "sweeps", operations=["CREATE"], id="few-enough")
def few_enough(spec: kopf.Spec, **_: Any) -> None:
    """Refuse a Sweep with too many trials."""
    if spec["trials"] > MOST_TRIALS:
        raise kopf.AdmissionError(f"a sweep has {MOST_TRIALS} trials at most, not {spec['trials']}", code=422)


@kopf.on.create("example.org", "v1", "sweeps")
def start(spec: kopf.Spec, name: str, namespace: str, patch: kopf.Patch, **_: Any) -> None:
    """Run the trials, as a Job that goes with its Sweep."""
    container = {"name": "trial", "image": spec["image"], "command": list(spec["command"])}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {LABEL: name}},
        "spec": {
            "completions": spec["trials"],
            "parallelism": spec["trials"],
            "completionMode": "Indexed",
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }
    kopf.adopt(job)
    try:
        kubernetes.client.BatchV1Api().create_namespaced_job(namespace, job)
    except kubernetes.client.ApiException as error:
        if error.status != 409:  # it was made before somebody stopped us
            raise
    patch.status.update({"phase": "Running", "done": 0, "operator": ME})


@kopf.on.field("batch", "v1", "jobs", labels={LABEL: kopf.PRESENT}, field="status.succeeded")
def count(new: int | None, labels: kopf.Labels, namespace: str, spec: kopf.Spec, **_: Any) -> None:
    """Tell in the Sweep how many of its trials are done."""
    done = new or 0
    status = {"done": done, "phase": "Done" if done == spec["completions"] else "Running"}
    try:
        kubernetes.client.CustomObjectsApi().patch_namespaced_custom_object_status(
            "example.org", "v1", namespace, "sweeps", labels[LABEL], {"status": status}
        )
    except kubernetes.client.ApiException as error:
        if error.status != 404:  # it was deleted meanwhile
            raise


@kopf.on.delete("example.org", "v1", "sweeps")
def note(name: str, namespace: str, status: kopf.Status, **_: Any) -> None:
    """Write down what there was, before the finalizer lets it go."""
    api = kubernetes.client.CoreV1Api()
    data = {name: f"{status.get('done', 0)} done, noted by {ME}"}
    body = {"metadata": {"name": NOTES}, "data": data}
    try:
        api.create_namespaced_config_map(namespace, body)
    except kubernetes.client.ApiException as error:
        if error.status != 409:
            raise
        api.patch_namespaced_config_map(NOTES, namespace, body)
