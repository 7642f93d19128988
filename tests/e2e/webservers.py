"""StatefulSet of two web servers that return their names, and Services that lead to them."""

from __future__ import annotations

from tests.e2e.cluster import BUSYBOX, REAL, Document

_SERVE = 'mkdir /w; echo "$(hostname) of TENANT" > /w/index.html; exec httpd -f -p 8080 -h /w'
_LABELS = {"app": "web"}
SCHEDULERS_LABELS = {"volcano.sh/job-name": "web", "kueue.x-k8s.io/pod-group-name": "web"}
"""Additional labels of the servers, by which schedulers identify gangs."""


def service_manifest(namespace: str, name: str, **spec: object) -> Document:
    """Return a Service on port 80 of the servers, unless its `spec` sets another."""
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": _LABELS, "ports": ports} | spec,
    }


def web_server_manifests(namespace: str, tenant: str) -> Document:
    """Return `web-0` and `web-1` on the real node, which answer `web-N of TENANT`. Their Service is `peers`."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "command": ["sh", "-c", _SERVE.replace("TENANT", tenant)],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    }
    template = {
        "metadata": {"labels": _LABELS | SCHEDULERS_LABELS},
        "spec": {"containers": [container], **REAL, "terminationGracePeriodSeconds": 1},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "serviceName": "peers",
            "replicas": 2,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": _LABELS},
            "template": template,
        },
    }
