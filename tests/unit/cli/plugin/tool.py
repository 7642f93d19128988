"""The plugin in a separate thread, and clusters that it recognizes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from vkgateway.cli.main import run_command
from vkgateway.cli.plugin.main import PROGRAM, plugin
from vkgateway.kube.resources import COMPUTE_CLUSTERS, NODES, PODS, TENANTS, Resource

GPU = "nvidia.com/gpu"
USER = "jane"


class ReviewingApiServer(FakeApiServer):
    """API server that answers reviews of the user and its rights."""

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        kind = request.path.rpartition("/")[2]
        if kind == "selfsubjectreviews":
            return web.json_response({"status": {"userInfo": {"username": USER}}}, status=201)
        if kind == "selfsubjectaccessreviews":
            allowed = self._allows((await request.json())["spec"]["resourceAttributes"])
            return web.json_response({"status": {"allowed": allowed}}, status=201)
        return await super()._dispatch(request)

    def _allows(self, asked: dict[str, str]) -> bool:
        known = (kind for kind in self._kinds.values() if kind.plural == asked["resource"])
        place = {key: asked.get(key, "") for key in ("namespace", "name", "subresource")}
        return self.rights is None or any(self.rights.allow(asked["verb"], kind, **place) for kind in known)


def tenant_server(**given: Any) -> ReviewingApiServer:
    """Return a tenant's API server: it serves no Tenants."""
    server = ReviewingApiServer(**given)
    server.unregister(TENANTS)
    server.unregister(COMPUTE_CLUSTERS)
    return server


def rights(namespace: str, **resources: str) -> Rights:
    """Return the rights of a Role in a namespace: verbs by resource of the core group."""
    rules = [
        {"apiGroups": [""], "resources": [resource], "verbs": verbs.split()} for resource, verbs in resources.items()
    ]
    return Rights([{"kind": "Role", "metadata": {"namespace": namespace}, "rules": rules}])


class Tool:
    """The plugin with a kubeconfig in a folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.out = self.err = ""

    async def __call__(self, *line: str) -> int:
        self.capsys.readouterr()
        code = await asyncio.to_thread(run_command, list(line), group=plugin, program=PROGRAM)
        self.out, self.err = self.capsys.readouterr()
        return code

    def use(self, monkeypatch: pytest.MonkeyPatch, server: str, *, namespace: str = "ns", **user: str) -> Path:
        """Make the server's context the current one of kubectl."""
        document = {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "current-context": "here",
        }
        file = self.folder / "kubeconfig"
        file.write_text(yaml.safe_dump(document))
        monkeypatch.setenv("KUBECONFIG", str(file))
        monkeypatch.setenv("VKGATEWAY_DATA_DIR", str(self.folder))
        for name in [name for name in os.environ if name.startswith("VKGATEWAY_GATEWAY")]:
            monkeypatch.delenv(name)
        return file


def pod(name: str, *, gpus: int = 8, namespace: str = "ns", **fields: Any) -> dict[str, Any]:
    """Return a governed pod that waits for the arbiter."""
    found: dict[str, Any] = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "schedulingGates": [{"name": "vkgateway.io/admission"}],
            "containers": [{"name": "c", "resources": {"limits": {GPU: str(gpus)}}}],
        },
        "status": {"phase": "Pending"},
    }
    for part, values in fields.items():
        found[part] = {**found[part], **values}
    return found


def running(name: str, *, node: str = "a100.local", **fields: Any) -> dict[str, Any]:
    """Return a governed pod that runs."""
    status = {"phase": "Running", "startTime": "2026-11-26T10:00:00Z"}
    return pod(name, **{"spec": {"schedulingGates": [], "nodeName": node}, "status": status, **fields})


def waits(message: str, reason: str = "WaitingForRoom") -> dict[str, Any]:
    """Return the status of a waiting pod."""
    admitted = {"type": "vkgateway.io/Admitted", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [admitted]}


def node(name: str = "a100.local", *, gpus: int = 16, ready: bool = True, **labels: str) -> dict[str, Any]:
    """Return a virtual node."""
    pool, _, cluster = name.partition(".")
    own = {"type": "virtual-kubelet", "vkgateway.io/pool": pool, "vkgateway.io/compute-cluster": cluster}
    conditions = [
        {"type": "Ready", "status": str(ready), "reason": "ComputeReady" if ready else "ComputeUnreachable"},
        {"type": "vkgateway.io/ComputeConnected", "status": str(ready)},
    ]
    return {
        "metadata": {"name": name, "labels": own | labels},
        "status": {"allocatable": {GPU: str(gpus), "cpu": "96"}, "conditions": conditions},
    }


def put(server: FakeApiServer, *documents: dict[str, Any], resource: Resource = PODS) -> None:
    """Create objects with their status."""
    for made in documents:
        name, namespace = made["metadata"]["name"], made["metadata"].get("namespace", "")
        server.store.create(resource, made, namespace)
        if "status" in made:
            found = server.store.get(resource, name, namespace)
            place = {"name": name, "namespace": namespace}
            server.store.update(resource, found | {"status": made["status"]}, **place, status=True)


def put_nodes(server: FakeApiServer, *documents: dict[str, Any]) -> None:
    """Create nodes."""
    put(server, *documents, resource=NODES)
