"""virtual-kubelet's end-to-end suite: images, objects in a tenant, and one run against a virtual node."""

from __future__ import annotations

import asyncio
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from operators import published
from operators.programs import VIRTUAL_KUBELET_SUITE
from tests.e2e.cluster import Cluster, Platform
from tests.support.machine import patience_option
from vkgateway_platform.embedded.realnode.busybox import Busybox
from vkgateway_platform.embedded.realnode.images import BUSYBOX, Image, ImageEntry, image_architecture, pause_image

NAMESPACE: Final = "virtual-kubelet"
CASES: Final = 9
_FRONT: Final = "vkgateway.local/node-front:1"
_NAMES: Final = tuple(f"docker.io/library/{name}:latest" for name in ("foo", "bar", "baz"))
"""Images of the suite's pods, which only have to keep running."""
_UNTIL_ASKED: Final = "trap exit TERM; while :; do /bin/busybox sleep 3600 & wait; done"
_SECONDS: Final = 600
_OUTCOME: Final = re.compile(r"^\s+--- (PASS|FAIL|SKIP): TestEndToEnd/(\w+)", re.MULTILINE)


def build_suite() -> Path:
    """Return the directory with the suite and the program of the pod that acts as the node's kubelet."""
    return asyncio.run(published.provide_programs(VIRTUAL_KUBELET_SUITE, report=print))


def load_images(platform: Platform, programs: Path, *, folder: Path) -> None:
    """Load the suite's images, and that of the kubelet's pod, onto the real node."""
    # As a server does, and unlike a plain `sleep`, it ends when it is asked to.
    sleeps = replace(pause_image(Busybox.from_file(BUSYBOX)), command=("/bin/busybox", "sh", "-c", _UNTIL_ASKED))
    front = [ImageEntry("tmp", 0o1777), ImageEntry("node-front", 0o755, (programs / "node-front").read_bytes())]
    images = [replace(sleeps, name=name) for name in _NAMES]
    for image in (*images, Image(name=_FRONT, entries=front, command=("/node-front",))):
        archive = folder / "image.tar"
        archive.write_bytes(image.to_archive(architecture=image_architecture()))
        platform.vkgateway("image", "load", str(archive))


def create_namespace(tenant: Cluster) -> None:
    """Create the suite's namespace. Its pods use images of the node, because no registry has them."""
    tenant.apply(*_namespace_objects(), *_policy_objects())


def create_kubelet_pod(tenant: Cluster, node: str) -> None:
    """Create the pod that the suite uses as the node's kubelet. It has the node's name and runs on the real node."""
    account = {"serviceAccountName": "node-front", "nodeSelector": {"vkgateway.io/pool": "real"}}
    container: dict[str, Any] = {"name": "front", "image": _FRONT, "env": [{"name": "NODE_NAME", "value": node}]}
    container["readinessProbe"] = {"tcpSocket": {"port": 10250}, "periodSeconds": 1}
    metadata = {"name": node, "namespace": NAMESPACE}
    tenant.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**account, "containers": [container]}}
    )
    tenant.kubectl("wait", "pod", node, "-n", NAMESPACE, "--for=condition=Ready", patience_option(120), timeout=130)


def run_suite(tenant: Cluster, programs: Path, node: str) -> tuple[dict[str, str], str]:
    """Run the suite against a virtual node. Return PASS, FAIL or SKIP by case, and the output."""
    argv = [str(programs / "virtual-kubelet-e2e.test"), "-test.v", f"-test.timeout={_SECONDS}s"]
    argv += [f"-kubeconfig={tenant.kubeconfig}", f"-namespace={NAMESPACE}", f"-node-name={node}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_SECONDS + 30)
    output = done.stdout + done.stderr
    return {case: outcome for outcome, case in _OUTCOME.findall(output)}, output


def _namespace_objects() -> list[dict[str, Any]]:
    """Return the namespace, and an account that may use the proxies of nodes."""
    subject = {"kind": "ServiceAccount", "name": "node-front", "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "node-front"}
    rights = {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]}
    rbac = "rbac.authorization.k8s.io/v1"
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "node-front", "namespace": NAMESPACE},
        },
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": "node-front"}, "rules": [rights]},
        {
            "apiVersion": rbac,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "node-front"},
            "subjects": [subject],
            "roleRef": role,
        },
    ]


def _policy_objects() -> list[dict[str, Any]]:
    """Return a policy of the tenant that replaces a registry: images without a tag would otherwise always be pulled."""
    names = "object.spec.containers.map(c, Object.spec.containers{name: c.name, imagePullPolicy: 'IfNotPresent'})"
    expression = f"Object{{spec: Object.spec{{containers: {names}}}}}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    group = "admissionregistration.k8s.io/v1"
    return [
        {
            "apiVersion": group,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": "images-of-the-node"},
            "spec": {
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {"namespaceSelector": selector, "resourceRules": [rule]},
                "mutations": [
                    {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}},
                ],
            },
        },
        {
            "apiVersion": group,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": "images-of-the-node"},
            "spec": {"policyName": "images-of-the-node"},
        },
    ]
