"""Steps of the real node on a machine that refuses what it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from vkgateway.api.errors import UnavailableError
from vkgateway.kube.client import Client
from vkgateway.planes.pki import Authority
from vkgateway.planes.supervisor.client import SupervisorClient
from vkgateway_platform.embedded.options import PORTS
from vkgateway_platform.embedded.real_node_steps import RealNodeSteps
from vkgateway_platform.embedded.realnode.host import ToolError
from vkgateway_platform.embedded.realnode.node import RealNode
from vkgateway_platform.embedded.realnode.options import PROGRAMS
from vkgateway_platform.embedded.record import PlatformRecord


async def test_error_of_the_machine_names_the_option_without_a_real_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(_: RealNode) -> None:
        raise ToolError("`ip link add` failed: Operation not supported")

    monkeypatch.setattr(RealNode, "prepare", refuse)
    record = PlatformRecord(number=7, interface="vkg7", address="10.213.7.1", ports=dict(PORTS))
    node = RealNodeSteps(tmp_path / "node", record=record, supervisor=SupervisorClient.for_data_dir(tmp_path))
    async with Client("http://127.0.0.1:1") as api:
        authority = Authority.create("compute")
        first, _ = node.build_steps(programs=dict.fromkeys(PROGRAMS, tmp_path), api=api, authority=authority)
        with pytest.raises(UnavailableError, match="Operation not supported") as caught:
            await first.run()
    assert "--real-node no" in caught.value.hint
