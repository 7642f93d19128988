"""Hollow nodes and KWOK's configuration."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from vkgateway.api.names import HOLLOW_DOMAIN, MIRROR_FINALIZER, is_reserved
from vkgateway_platform.embedded.hollow import kwok
from vkgateway_platform.embedded.hollow.nodes import DOMAIN_LABEL, POOL_LABEL, hollow_nodes

KUBELET = kwok.HollowKubelet(address="127.0.0.1", port=10247)


def by_kind(path: Path) -> dict[str, list[dict[str, Any]]]:
    documents: dict[str, list[dict[str, Any]]] = {}
    for document in yaml.safe_load_all(path.read_text()):
        documents.setdefault(document["kind"], []).append(document)
    return documents


@pytest.fixture
def config(tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    return by_kind(kwok.write_config(tmp_path, kubelet=KUBELET))


def test_each_pool_has_the_requested_number_of_nodes() -> None:
    made = Counter(
        node["metadata"]["labels"][POOL_LABEL] for node in hollow_nodes({"a100": 4, "v100": 2}, version="1.36.3")
    )
    assert made == {"a100": 4, "v100": 2}


def test_a100_nodes_are_spread_over_two_networks() -> None:
    domains = [node["metadata"]["labels"][DOMAIN_LABEL] for node in hollow_nodes({"a100": 4}, version="1.36.3")]
    assert domains == ["a100-0", "a100-0", "a100-1", "a100-1"]


def test_node_offers_eight_gpus() -> None:
    node = next(hollow_nodes({"v100": 1}, version="1.36.3"))
    assert node["status"]["allocatable"] == node["status"]["capacity"]
    assert node["status"]["capacity"]["nvidia.com/gpu"] == "8"


def test_node_has_the_release_of_its_cluster() -> None:
    """Tenants see it as the version of their virtual nodes."""
    assert next(hollow_nodes({"v100": 1}, version="1.34.4"))["status"]["nodeInfo"]["kubeletVersion"] == "v1.34.4"


def test_kwok_manages_only_annotated_nodes(config: dict[str, list[dict[str, Any]]]) -> None:
    selector = config["KwokConfiguration"][0]["options"]["manageNodesWithAnnotationSelector"]
    key, _, value = selector.partition("=")
    assert all(node["metadata"]["annotations"][key] == value for node in hollow_nodes({"a100": 2}, version="1.36.3"))


def test_kwok_serves_nothing(config: dict[str, list[dict[str, Any]]]) -> None:
    """KWOK cannot authenticate callers; port 0 and no address disable its server."""
    options = config["KwokConfiguration"][0]["options"]
    assert not {"serverAddress", "nodePort"} & options.keys()
    assert options["enableDebuggingHandlers"] is False
    assert not {"ClusterExec", "ClusterLogs", "ClusterAttach", "ClusterPortForward"} & config.keys()


def test_nodes_name_the_port_of_the_hollow_kubelet(config: dict[str, list[dict[str, Any]]]) -> None:
    [heartbeat] = [stage for stage in config["Stage"] if stage["metadata"]["name"] == "node-heartbeat"]
    assert "kubeletEndpoint: {Port: 10247}" in heartbeat["spec"]["steps"][0]["patch"]["template"]


def test_every_parallelism_is_set(config: dict[str, list[dict[str, Any]]]) -> None:
    # With a configuration KWOK uses none of its defaults, and refuses a zero.
    options = config["KwokConfiguration"][0]["options"]
    wanted = {"podPlayStage", "nodePlayStage", "nodeLease", "podsOnNodeSync"}
    assert all(options[f"{name}Parallelism"] > 0 for name in wanted)


def test_changed_configuration_changes_the_process(tmp_path: Path) -> None:
    def spec(parallelism: int = 8) -> str:
        config = kwok.write_config(tmp_path, kubelet=KUBELET, parallelism=parallelism)
        return kwok.process_spec(program=Path("/kwok"), config=config, kubeconfig=kubeconfig).short_digest()

    kubeconfig = tmp_path / "kc"
    kubeconfig.write_text("made")
    first = spec(8)
    assert first == spec(8) != spec(9)
    kubeconfig.write_text("renewed")  # read only at start, and it expires
    assert spec() != first


def stages() -> dict[str, dict[str, Any]]:
    return {stage["metadata"]["name"]: stage["spec"] for stage in kwok.load_stages(10247)}


def test_tenants_may_set_when_a_hollow_pod_ends() -> None:
    key = stages()["pod-complete"]["selector"]["matchExpressions"][0]["jq"]["key"]
    annotation = key.partition('["')[2].removesuffix('"]')
    assert annotation == f"{HOLLOW_DOMAIN}/run-seconds"
    assert not is_reserved(annotation)


def test_no_stage_removes_a_finalizer() -> None:
    assert not [name for name, stage in stages().items() if any("finalizers" in step for step in stage["steps"])]


def matching(pod: dict[str, Any]) -> list[str]:
    """Return the names of the pod stages whose selectors match."""
    return [name for name, stage in stages().items() if name.startswith("pod-") and _selects(stage, pod)]


def _selects(stage: dict[str, Any], pod: dict[str, Any]) -> bool:
    return all(_holds(term["jq"], pod) for term in stage["selector"]["matchExpressions"])


def _holds(term: dict[str, Any], pod: dict[str, Any]) -> bool:
    value = _value(term["key"], pod)
    match term["operator"]:
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "In":
            return value in term["values"]
    assert term["operator"] == "NotIn"
    return value not in term["values"]


def _value(key: str, pod: dict[str, Any]) -> Any:
    """Return the value of a selector's key, in the few forms of jq that the stages use."""
    if key.startswith("[.spec.readinessGates"):
        gates = {gate["conditionType"] for gate in pod["spec"].get("readinessGates", [])}
        opened = {one["type"] for one in pod["status"].get("conditions", []) if one["status"] == "True"}
        return str(gates <= opened).lower()
    if key.startswith(".status.conditions"):
        conditions = pod["status"].get("conditions", [])
        return next((one["status"] for one in conditions if f'"{one["type"]}"' in key), None)
    before, _, annotation = key.partition('["')
    value: Any = pod
    for part in [*before.split(".")[1:], *([annotation.removesuffix('"]')] if annotation else [])]:
        value = (value or {}).get(part)
    return value


def pod(
    phase: str,
    *,
    deleting: int | None = None,
    finalizer: bool = False,
    run_seconds: bool = False,
    ready: str = "True",
    gate: str = "",
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"annotations": {"kwok.vkgateway.io/run-seconds": "1"} if run_seconds else {}}
    if deleting is not None:
        metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": deleting}
    if finalizer:
        metadata["finalizers"] = [MIRROR_FINALIZER]
    conditions = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": ready}]
    spec: dict[str, Any] = {"restartPolicy": "Never"}
    if gate:
        spec["readinessGates"] = [{"conditionType": "example.org/warm"}]
        conditions.append({"type": "example.org/warm", "status": gate})
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, "conditions": conditions}}


@pytest.mark.parametrize(
    ("what", "stage"),
    [
        (pod("Pending"), ["pod-start"]),
        (pod("Running"), []),
        (pod("Running", ready="False"), ["pod-ready-again"]),
        (pod("Running", ready="False", gate="False"), []),
        (pod("Running", ready="False", gate="True"), ["pod-ready-again"]),
        (pod("Running", ready="True", gate="True"), []),
        (pod("Running", ready="True", gate="False"), ["pod-gates-closed"]),
        (pod("Succeeded", ready="False"), []),
        (pod("Running", ready="False", deleting=30, finalizer=True), ["pod-end"]),
        (pod("Running", run_seconds=True), ["pod-complete"]),
        (pod("Succeeded", run_seconds=True), []),
        (pod("Running", deleting=30), ["pod-remove"]),
        (pod("Running", deleting=30, finalizer=True), ["pod-end"]),
        (pod("Pending", deleting=30, finalizer=True), ["pod-end"]),
        (pod("Failed", deleting=30, finalizer=True), []),
        (pod("Failed", deleting=0, finalizer=True), []),
        (pod("Succeeded", deleting=0), []),
        (pod("Failed", deleting=30), []),
    ],
)
def test_at_most_one_stage_matches_a_pod(what: dict[str, Any], stage: list[str]) -> None:
    assert matching(what) == stage
