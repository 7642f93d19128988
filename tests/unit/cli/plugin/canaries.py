"""Objects with a canary in every place where a secret can hide."""

from __future__ import annotations

import itertools
from typing import Any

from tests.unit.cli.plugin.tool import node, pod, running

Document = dict[str, Any]


class Canaries:
    """Numbered canaries, with the place of each, so that a failed test names it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.places: dict[str, str] = {}

    def plant(self, place: str) -> str:
        """Return a new canary for a place."""
        canary = f"c4n4ry{next(self._numbers):03d}"
        self.places[canary] = place
        return canary

    def found_in(self, text: str) -> list[str]:
        """Return the places of the canaries in a text."""
        return [place for canary, place in self.places.items() if canary in text]

    def metadata(self, what: str) -> Document:
        """Return labels and annotations with canaries."""
        applied = f'{{"env": "{self.plant(f"last-applied of {what}")}"}}'
        return {
            "labels": {"team-token": self.plant(f"label of {what}")},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": applied,
                "example.com/password": self.plant(f"annotation of {what}"),
                "vkgateway.io/log-tails": self.plant(f"log tails of {what}"),
                "vkgateway.io/field-x": self.plant(f"downward field of {what}"),
            },
            "managedFields": [{"manager": self.plant(f"managed fields of {what}"), "fieldsV1": {}}],
        }

    def container(self, what: str) -> Document:
        """Return a container with canaries."""
        http = {"path": f"/{self.plant(f'probe of {what}')}", "port": 80, "httpHeaders": [self._header(what)]}
        return {
            "name": "c",
            "image": f"u:{self.plant(f'image of {what}')}@registry/app",
            "command": ["sh", "-c", self.plant(f"command of {what}")],
            "args": [f"--token={self.plant(f'argument of {what}')}"],
            "env": [{"name": "TOKEN", "value": self.plant(f"environment of {what}")}],
            "envFrom": [{"secretRef": {"name": self.plant(f"envFrom of {what}")}}],
            "livenessProbe": {"httpGet": http},
            "lifecycle": {"preStop": {"exec": {"command": [self.plant(f"preStop of {what}")]}}},
            "volumeMounts": [{"name": "v", "mountPath": f"/{self.plant(f'mount of {what}')}"}],
            "resources": {"limits": {"nvidia.com/gpu": "8"}},
        }

    def _header(self, what: str) -> Document:
        return {"name": "Authorization", "value": self.plant(f"probe header of {what}")}

    def pod(self, name: str, *, waiting: bool = False, namespace: str = "ns") -> Document:
        """Return a governed pod with canaries."""
        made = pod(name) if waiting else running(name)
        made["metadata"] |= {"name": name, "namespace": namespace, **self.metadata(f"pod {name}")}
        made["spec"] |= {
            "containers": [self.container(f"pod {name}")],
            "initContainers": [self.container(f"init container of pod {name}")],
            "volumes": [{"name": "v", "csi": {"volumeAttributes": {"key": self.plant("volume attribute")}}}],
            "imagePullSecrets": [{"name": self.plant("pull secret")}],
            "hostAliases": [{"ip": "1.2.3.4", "hostnames": [self.plant("host alias")]}],
        }
        terminated = {"exitCode": 1, "reason": "Error", "message": self.plant("termination message")}
        made["status"] |= {
            "message": self.plant("status message"),
            "conditions": [
                *self._conditions(),
                {
                    "type": "vkgateway.io/Admitted",
                    "status": "False" if waiting else "True",
                    "reason": "Invalid",
                    "message": self.plant("pending message that quotes a mark"),
                },
            ],
            "containerStatuses": [
                {
                    "name": "c",
                    "state": {"waiting": {"reason": "CreateContainerError", "message": self.plant("waiting message")}},
                    "lastState": {"terminated": terminated},
                }
            ],
        }
        return made

    def _conditions(self) -> list[Document]:
        kinds = ("PodScheduled", "vkgateway.io/Forwarded", "vkgateway.io/PoolScheduled", "example.com/Gate")
        return [
            {"type": kind, "status": "False", "reason": "Unschedulable", "message": self.plant(f"condition {kind}")}
            for kind in kinds
        ]

    def node(self, name: str = "a100.local") -> Document:
        """Return a virtual node with canaries."""
        made = node(name)
        made["metadata"]["annotations"] = {"example.com/key": self.plant("annotation of a node")}
        made["status"]["conditions"] += [
            {"type": "Other", "status": "False", "reason": "Other", "message": self.plant("condition of a node")}
        ]
        return made

    def event(self, about: str, reason: str, *, kind: str = "Pod", component: str = "kubelet") -> Document:
        """Return an event with canaries."""
        return {
            "metadata": {"name": f"{about}.{reason.lower()}", **self.metadata(f"event {reason}")},
            "involvedObject": {"kind": kind, "name": about, "fieldPath": self.plant("field path of an event")},
            "reason": reason,
            "message": f"Bearer {self.plant(f'event {reason}')}",
            "source": {"component": component, "host": self.plant("host of an event")},
        }

    def webhooks(self, name: str) -> Document:
        """Return a webhook configuration with canaries."""
        url = f"https://u:{self.plant('user of a webhook')}@hooks.example/{self.plant('path of a webhook')}"
        client = {"url": f"{url}?token={self.plant('query of a webhook')}", "caBundle": self.plant("CA of a webhook")}
        expression = {"name": "x", "expression": self.plant("match condition of a webhook")}
        return {
            "metadata": {"name": name, **self.metadata("webhooks")},
            "webhooks": [{"name": "w.example", "clientConfig": client, "matchConditions": [expression]}],
        }

    def data(self, name: str) -> Document:
        """Return the ConfigMap or Secret with canaries."""
        return {"metadata": {"name": name}, "data": {"key": self.plant(f"data of {name}")}}
