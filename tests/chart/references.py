"""References between rendered objects: every name that one of them states must belong to another one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chart.conftest import Document, Objects
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.serve.certificate_authority import SECRET_NAME
from vkgateway.settings.config import Config
from vkgateway.settings.file import load_settings

Reference = tuple[str, str]
"""Kind and name of an object."""

_HOST = re.compile(rf"(?:([a-z0-9-]+)\.)?([a-z0-9-]+)\.{SYSTEM_NAMESPACE}\.svc\b")
_ACCOUNT = re.compile(rf"system:serviceaccount:{SYSTEM_NAMESPACE}:([a-z0-9-]+)")
_SERVICE_LABEL = re.compile(r'service="([^"]+)"')
_CERTIFICATES = ("authority", "server", "client")


def read_settings(objects: Objects, folder: Path) -> Config:
    """Return the settings as the gateway reads them from the ConfigMap that its pods mount."""
    (deployment,) = objects.kinds("Deployment")
    volumes = {one["name"]: one for one in deployment["spec"]["template"]["spec"]["volumes"]}
    file = folder / "gateway.yaml"
    file.write_text(objects.get("ConfigMap", volumes["config"]["configMap"]["name"])["data"]["gateway.yaml"])
    return load_settings(file, environment={})


def existing(objects: Objects, config: Config) -> set[Reference]:
    """Return the rendered objects, the pods of etcd, and the Secrets that the gateway and cert-manager create."""
    found = {(one["kind"], one["metadata"]["name"]) for one in objects.all}
    for one in objects.kinds("StatefulSet"):
        found |= {("Pod", f"{one['metadata']['name']}-{member}") for member in range(one["spec"]["replicas"])}
    found |= {("Secret", one["spec"]["secretName"]) for one in objects.kinds("Certificate")}
    if prefix := config.datastore.managed.secret_prefix:
        found |= {("Secret", f"{prefix}-{part}") for part in _CERTIFICATES}
    return found | {("Secret", SECRET_NAME)}


def references(objects: Objects) -> Iterator[Reference]:
    """Yield each object that another one names, in a field or as a host name in any text."""
    for one in objects.all:
        yield from _fields(one)
        for text in _texts(one):
            yield from _in_text(text)
    for pod in objects.pods():
        yield from _volumes(pod)
        if pod.get("serviceAccountName"):
            yield "ServiceAccount", pod["serviceAccountName"]


def _fields(one: Document) -> Iterator[Reference]:
    kind, spec = one["kind"], one.get("spec", {})
    if kind == "StatefulSet":
        yield "Service", spec["serviceName"]
    if kind == "ValidatingAdmissionPolicyBinding":
        yield "ValidatingAdmissionPolicy", spec["policyName"]
    if kind.endswith("RoleBinding"):
        yield one["roleRef"]["kind"], one["roleRef"]["name"]
        for subject in one["subjects"]:
            if subject.get("namespace") == SYSTEM_NAMESPACE:
                yield subject["kind"], subject["name"]
    if kind == "Certificate":
        yield spec["issuerRef"]["kind"], spec["issuerRef"]["name"]
    if kind == "Issuer" and "ca" in spec:
        yield "Secret", spec["ca"]["secretName"]
    if kind == "ServiceMonitor":
        for endpoint in spec["endpoints"]:
            if "tlsConfig" in endpoint:
                yield "Secret", endpoint["tlsConfig"]["ca"]["secret"]["name"]


def _volumes(pod: Document) -> Iterator[Reference]:
    for volume in pod.get("volumes", ()):
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]
        for source in volume.get("projected", {}).get("sources", ()):
            yield "Secret", source["secret"]["name"]


def _in_text(text: str) -> Iterator[Reference]:
    for pod, service in _HOST.findall(text):
        yield "Service", service
        if pod:
            yield "Pod", pod
    for account in _ACCOUNT.findall(text):
        yield "ServiceAccount", account
    for service in _SERVICE_LABEL.findall(text):
        yield "Service", service


def _texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        for value in part.values():
            yield from _texts(value)
    elif isinstance(part, list):
        for value in part:
            yield from _texts(value)
