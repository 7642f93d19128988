"""Pods of the driver `kubernetes`: replicas, resources and scheduling from a template."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.controlplane.drivers.test_kubernetes_driver import NAMESPACE, ManagementWorld, start_world
from tests.unit.controlplane.test_provisioner import tenant
from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import UnavailableError
from vkgateway.kube.resources import DEPLOYMENTS, DISRUPTION_BUDGETS, NAMESPACES
from vkgateway.planes.plane import COMPONENTS


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ManagementWorld]:
    async with start_world(tmp_path) as world:
        yield world


def write_template(world: ManagementWorld, text: str) -> None:
    """Replace the default template, and keep the values that its objects use."""
    values = "values: {guaranteedPriority: 0, lowPriority: -1000}"
    (world.templates.folder / "default" / "template.yaml").write_text(f"description: some\n{values}\n{text}\n")


async def provision(world: ManagementWorld, template: str) -> dict[str, dict[str, Any]]:
    """Provision a tenant with a template; return the containers of its control plane by component."""
    write_template(world, template)
    await world.provisioner().provision(tenant())
    return {container["name"]: container for container in world.pod_spec()["containers"]}


async def test_single_pod_runs_without_leader_election_and_budget(world: ManagementWorld) -> None:
    containers = await provision(world, "")
    assert world.cluster.get(DEPLOYMENTS, "control-plane", NAMESPACE)["spec"]["replicas"] == 1
    assert "--leader-elect=false" in containers["scheduler"]["args"]
    assert not any(argument.startswith("--shutdown-delay") for argument in containers["apiserver"]["args"])
    assert world.cluster.find(DISRUPTION_BUDGETS, "control-plane", NAMESPACE) is None
    assert "topologySpreadConstraints" not in world.pod_spec()


async def test_replicas_elect_leaders_and_stop_after_their_clients_left(world: ManagementWorld) -> None:
    containers = await provision(world, "pod: {replicas: 2}")
    found = world.cluster.get(DEPLOYMENTS, "control-plane", NAMESPACE)["spec"]
    assert (found["replicas"], found["minReadySeconds"]) == (2, 2)
    assert found["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    for name in ("controller-manager", "scheduler"):
        assert "--leader-elect=true" in containers[name]["args"]
    wanted = {"--shutdown-delay-duration=3s", "--shutdown-send-retry-after=true"}
    assert wanted <= set(containers["apiserver"]["args"])
    budget = world.cluster.get(DISRUPTION_BUDGETS, "control-plane", NAMESPACE)["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    labels = found["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    spec = world.pod_spec()
    assert spec["terminationGracePeriodSeconds"] == 30
    assert {one["topologyKey"] for one in spec["topologySpreadConstraints"]} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }
    assert all(one["whenUnsatisfiable"] == "ScheduleAnyway" for one in spec["topologySpreadConstraints"])


async def test_one_of_several_servers_answers_no_list_from_its_watch_cache(world: ManagementWorld) -> None:
    write_template(world, "pod: {replicas: 3}")
    made = await world.provisioner().provision(tenant())
    loaded = await world.provisioner().load_existing(tenant())
    assert loaded is not None
    assert [plane.create_client().single_server for plane in (made, loaded)] == [False, False]
    write_template(world, "")
    await world.provisioner().provision(tenant())
    loaded = await world.provisioner().load_existing(tenant())
    assert loaded is not None
    assert loaded.create_client().single_server


async def test_clients_of_the_api_server_are_probed(world: ManagementWorld) -> None:
    containers = await provision(world, "")
    for name, port in {"controller-manager": 10257, "scheduler": 10259}.items():
        assert {f"--secure-port={port}", "--bind-address=0.0.0.0"} <= set(containers[name]["args"])
        assert containers[name]["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": port, "scheme": "HTTPS"}


async def test_components_request_resources_and_have_no_limits_by_default(world: ManagementWorld) -> None:
    containers = await provision(world, "")
    for name in COMPONENTS:
        assert containers[name]["resources"].keys() == {"requests"}
        assert "GOMEMLIMIT" not in {variable["name"] for variable in containers[name]["env"]}


async def test_go_programs_know_their_limits(world: ManagementWorld) -> None:
    limits = "resources: {limits: {memory: 1Gi, cpu: 1500m}}"
    containers = await provision(
        world, f"components: {{apiserver: {{{limits}}}, scheduler: {{{limits}, env: {{GOMAXPROCS: 1}}}}}}"
    )
    variables = {one["name"]: one["value"] for one in containers["apiserver"]["env"]}
    assert (variables["GOMEMLIMIT"], variables["GOMAXPROCS"]) == (str(2**30 * 9 // 10), "2")
    assert {"name": "GOMAXPROCS", "value": "1"} in containers["scheduler"]["env"]
    assert containers["apiserver"]["resources"] == {"limits": {"memory": "1Gi", "cpu": "1500m"}}


async def test_settings_of_a_template_add_to_the_parameters(world: ManagementWorld) -> None:
    world.parameters |= {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "priorityClassName": "low",
    }
    both = "[{key: system, operator: Exists}, {key: fast, operator: Exists}]"
    await provision(world, f"pod: {{nodeSelector: {{disk: fast}}, tolerations: {both}, priorityClassName: high}}")
    spec = world.pod_spec()
    assert spec["nodeSelector"] == {"pool": "system", "disk": "fast"}
    assert [one["key"] for one in spec["tolerations"]] == ["system", "fast"]
    assert spec["priorityClassName"] == "high"


async def test_name_servers_have_as_many_pods_at_the_same_nodes(world: ManagementWorld) -> None:
    await provision(world, "pod: {replicas: 2, nodeSelector: {disk: fast}, tolerations: [{key: fast}]}")
    servers = world.create_driver().name_servers
    assert servers is not None
    local = ClusterIdentity("local", world.cluster.get(NAMESPACES, "kube-system")["metadata"]["uid"])
    with pytest.raises(UnavailableError):
        await servers.ensure_server("alpha", local, {})
    assert world.cluster.get(DEPLOYMENTS, "names-local", NAMESPACE)["spec"]["replicas"] == 2
    spec = world.pod_spec("names-local")
    assert (spec["nodeSelector"], spec["tolerations"]) == ({"disk": "fast"}, [{"key": "fast"}])
    assert spec["topologySpreadConstraints"]
    assert world.cluster.find(DISRUPTION_BUDGETS, "names-local", NAMESPACE) is not None
    await servers.remove_stale(())
    assert world.cluster.find(DISRUPTION_BUDGETS, "names-local", NAMESPACE) is None
