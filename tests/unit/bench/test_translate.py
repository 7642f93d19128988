"""Benchmark of the translation."""

from bench.translate import measure_pods
from bench.typicalpod import running_compute_pod, typical_pod
from tests.unit.translate.samples import POOL, TENANT, forward
from vkgateway.kinds.pods.policy.rules import find_refusals
from vkgateway.kinds.pods.translation.to_tenant import mirror_status


def test_typical_pod_is_allowed_and_complete() -> None:
    pod = typical_pod(7)
    spec = pod["spec"]
    variables = [entry for container in spec["containers"] for entry in container.get("env", ())]
    assert (len(spec["initContainers"]), len(spec["containers"]), len(variables), len(spec["volumes"])) == (1, 2, 10, 4)
    assert find_refusals(pod, tenant=TENANT, pool=POOL) == ()


def test_status_of_the_typical_pod_is_mirrored() -> None:
    patch = mirror_status(running_compute_pod(forward(typical_pod(7))), {"phase": "Pending"}, node_ip="10.213.0.1")
    assert patch is not None
    assert (patch["phase"], patch["hostIP"], len(patch["containerStatuses"])) == ("Running", "10.213.0.1", 2)


def test_every_step_is_measured() -> None:
    seen = measure_pods(pods=3, rounds=3)
    assert set(seen) == {"json", "copy", "judge", "down", "up"}
    assert all(each > 0 for each in seen.values())
