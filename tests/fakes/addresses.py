"""Cluster IPs as a real API server allocates them: from ServiceCIDRs, each once."""

from __future__ import annotations

import copy
import ipaddress
from dataclasses import dataclass
from typing import Any

from tests.fakes.store import Document, ObjectStore, Refusal
from vkgateway.kube.resources import SERVICE_CIDRS, SERVICES, Resource

DEFAULT = "10.215.0.0/24"


@dataclass
class Addresses:
    """Allocates addresses to Services of a store. ServiceCIDRs are ready immediately, unless `ready` returns False."""

    store: ObjectStore
    ready: bool = True

    def __post_init__(self) -> None:
        self._create, self._update = self.store.create, self.store.update
        self.store.create = self.create  # type: ignore[method-assign]
        self.store.update = self.update  # type: ignore[method-assign]
        self._next = 20

    def create(self, resource: Resource, document: Document, namespace: str = "") -> Document:
        if resource is SERVICES and document["spec"].get("type") != "ExternalName":
            document = copy.deepcopy(document)
            wanted = document["spec"].get("clusterIP")
            document["spec"]["clusterIP"] = self._checked(wanted) if wanted else self._free()
        if resource is SERVICE_CIDRS and self.ready:
            document = document | {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        return self._create(resource, document, namespace)

    def update(self, resource: Resource, document: Document, *, name: str, **more: Any) -> Document:
        if resource is SERVICES:
            document = copy.deepcopy(document)
            known = self.store.get(SERVICES, name, more.get("namespace", ""))["spec"].get("clusterIP")
            if document["spec"].setdefault("clusterIP", known) != known:
                raise Refusal(422, "Invalid", 'spec.clusterIPs[0]: Invalid value: ["x"]: may not change once set')
        return self._update(resource, document, name=name, **more)

    def _free(self) -> str:
        self._next += 1
        return str(ipaddress.ip_network(DEFAULT)[self._next])

    def _checked(self, address: str) -> str:
        if address == "None":
            return address
        message = f'spec.clusterIPs: Invalid value: ["{address}"]: failed to allocate IP {address}: '
        if any(found["spec"].get("clusterIP") == address for found in self.store.all(SERVICES)):
            raise Refusal(422, "Invalid", message + "provided IP is already allocated")
        if not any(ipaddress.ip_address(address) in ipaddress.ip_network(cidr) for cidr in self._cidrs()):
            raise Refusal(422, "Invalid", message + "the provided network does not match the current range")
        return address

    def _cidrs(self) -> list[str]:
        ready = [found for found in self.store.all(SERVICE_CIDRS) if found.get("status")]
        return [DEFAULT, *(cidr for found in ready for cidr in found["spec"]["cidrs"])]
