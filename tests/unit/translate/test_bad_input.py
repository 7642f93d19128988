"""Pods at the limits of API servers: long names, large fields, texts of all kinds."""

import pytest

from tests.unit.translate.samples import POOL, TENANT, compute_pod, container, forward, pod
from vkgateway.api.names import token_secret_name
from vkgateway.kinds.pods.policy.rules import find_refusals
from vkgateway.kinds.pods.translation.pod_diff import PodDiff, diff_pods
from vkgateway.kinds.pods.translation.to_tenant import mirror_status

LONG = ".".join(["a" * 63] * 3 + ["b" * 61])


def test_longest_names_are_forwarded() -> None:
    assert len(LONG) == 253
    wanted = pod(
        metadata={"name": LONG, "namespace": "n" * 63}, volumes=[{"name": "v", "secret": {"secretName": LONG}}]
    )
    assert find_refusals(wanted, tenant=TENANT, pool=POOL) == ()
    made = forward(wanted)
    assert made["metadata"]["name"] == LONG
    assert made["metadata"]["annotations"]["vkgateway.io/namespace"] == "n" * 63
    assert len(token_secret_name(LONG, "uid")) <= 253


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("grün 東京 🚀", '"grün 東京 🚀"'),
        ('a "quoted"\\ line\nand\ttab', '"a \\"quoted\\"\\\\ line\\nand\\ttab"'),
        ("\x00\x7f\u200b\u00a0\U000e0001", '"\\x00\\x7f\\u200b\\u00a0\\U000e0001"'),
        ("", '""'),
    ],
)
def test_any_annotation_text_is_forwarded_and_rendered_as_by_a_kubelet(text: str, shown: str) -> None:
    items = [{"path": "a", "fieldRef": {"fieldPath": "metadata.annotations"}}]
    wanted = pod(metadata={"annotations": {"k": text}}, volumes=[{"name": "d", "downwardAPI": {"items": items}}])
    annotations = forward(wanted)["metadata"]["annotations"]
    assert annotations["k"] == text
    assert annotations["vkgateway.io/annotations"] == f"k={shown}"
    assert diff_pods(wanted, compute_pod(wanted, {}), tenant=TENANT, pool=POOL) == PodDiff()


def test_large_pod_is_forwarded_completely() -> None:
    env = [{"name": f"V{number}", "value": "x" * 1000} for number in range(1000)]
    made = forward(pod(containers=[container(f"c{number}", env=env) for number in range(20)]))
    assert [one["env"][-1000:] for one in made["spec"]["containers"]] == [env] * 20


def test_long_messages_are_mirrored_completely() -> None:
    message = "host-17 " * 10_000
    patch = mirror_status(
        compute_pod(pod(), {"message": message}), {"phase": "Pending"}, node_ip="10.213.0.1", node_name="a100.local"
    )
    assert patch is not None
    assert patch["message"] == message.replace("host-17", "a100.local")
