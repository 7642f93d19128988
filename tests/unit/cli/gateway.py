"""Gateway with a given state, and the command line that queries it, in a separate thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from vkgateway.cli import main
from vkgateway.kube import kubeconfig
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport, GangReport, PoolReport, TenantReport
from vkgateway.serve.health import HealthServer, QuestionHandler, UsageHandler

GPU = "nvidia.com/gpu"
NOON = 1_795_262_400.0
"""2026-11-21T12:00:00Z."""


def pool(name: str = "a100", **fields: Any) -> PoolReport:
    given = {
        "pool": name,
        "computeCluster": "local",
        "node": f"{name}.local",
        "resource": GPU,
        "nodes": 4,
        "usableNodes": 3,
        "allocatable": 24,
        "others": 1,
        "guaranteed": 20,
        "kept": 20,
        "used": 8,
        "borrowed": 6,
        "lent": 3,
        "free": 9.5,
        "waiting": 16,
        "largest": 8,
        "wholeNodes": 1,
        "spareNodes": 2,
        "spareNodesInUse": 1,
        "fragmentation": 0.16,
        "gangsWaiting": 2,
        "gangsRunning": 5,
        **fields,
    }
    return msgspec.convert(given, PoolReport)


def tenant(name: str, **fields: Any) -> TenantReport:
    given = {
        "tenant": name,
        "pool": "a100",
        "computeCluster": "local",
        "resource": GPU,
        "guarantee": 8,
        "kept": 8,
        "reduced": "",
        "limit": None,
        "weight": 1.0,
        "used": 8,
        "borrowed": 0,
        "waiting": 16,
        "gangsWaiting": 1,
        "gangsRunning": 2,
        **fields,
    }
    return msgspec.convert(given, TenantReport)


def gang(id_: str, **fields: Any) -> GangReport:
    owner, namespace, way, name = id_.split("/", 3)
    given = {
        "id": id_,
        "tenant": owner,
        "namespace": namespace,
        "name": name,
        "way": way,
        "band": "guaranteed",
        "priority": 0,
        "pools": ["a100.local"],
        "pool": "a100.local",
        "state": "waiting",
        "pods": 2,
        "placed": 0,
        "minimum": 2,
        "units": 16,
        "waitingUnits": 16,
        "borrowed": False,
        "since": NOON - 300,
        "code": "WaitingForRoom",
        "message": "needs 2 pods of nvidia.com/gpu 8; 0 of 2 would fit now",
        "place": 1,
        "earliest": NOON + 1800,
        "likely": NOON + 3600,
        **fields,
    }
    return msgspec.convert(given, GangReport)


class Cli:
    """Command line of a platform in a directory."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.out = self.err = ""

    async def __call__(self, *line: str) -> int:
        self.capsys.readouterr()
        code = await asyncio.to_thread(main.run_command, ["--data-dir", str(self.folder), *line])
        self.out, self.err = self.capsys.readouterr()
        return code

    def configure(self, **settings: Any) -> None:
        """Write the gateway's settings."""
        (self.folder / "gateway.yaml").write_text(yaml.safe_dump(settings))

    @asynccontextmanager
    async def gateway(
        self,
        state: ArbiterReport,
        *,
        what_if: QuestionHandler | None = None,
        usage: UsageHandler | None = None,
    ) -> AsyncIterator[None]:
        """Serve a gateway with this state."""
        socket = self.folder / "said.sock"
        health = HealthServer(
            address="127.0.0.1",
            port=0,
            checks={},
            state=lambda: msgspec.json.encode(state),
            socket=socket,
            what_if=what_if,
            usage=usage,
        )
        async with health:
            self.configure(observability={"socket": str(socket)})
            yield

    def kubeconfig(self, server: str, name: str = "tenant.kubeconfig") -> Path:
        """Return a kubeconfig of an API server that accepts all users."""
        document = {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [],
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "current-context": "c",
        }
        kubeconfig.write_file(self.folder / name, document)
        return self.folder / name
