"""Views of compute nodes: shared images, and at most as many as kubelets report by default."""

from __future__ import annotations

import json

from vkgateway.api.objects import NodeView
from vkgateway.clusters.link import MAX_IMAGES, decode_node, is_unchanged


def make_node(*images: list[str] | None, heartbeat: str = "") -> NodeView:
    node_images = [{"names": names, "sizeBytes": 1000} for names in images]
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]
    document = {"metadata": {"name": "host-1"}, "status": {"images": node_images, "conditions": conditions}}
    return decode_node(json.dumps(document).encode())


def test_nodes_share_common_images() -> None:
    one, two = (
        make_node(["train:1", "train@sha256:0"], ["own:1"]),
        make_node(["train:1", "train@sha256:0"], ["other:1"]),
    )

    assert one.status.images[0].names == ("train:1", "train@sha256:0")
    assert one.status.images[0] is two.status.images[0]
    assert one.status.images[1] != two.status.images[1]


def test_node_without_images_and_node_with_too_many() -> None:
    assert make_node().status.images == ()
    assert len(make_node(*([f"image:{number}"] for number in range(1000))).status.images) == MAX_IMAGES
    assert len(make_node([f"name:{number}" for number in range(1000)]).status.images[0].names or ()) < 10


def test_image_without_names_is_skipped() -> None:
    """Kubelets report null names for an image whose tag has moved to a newer image."""
    assert [image.names for image in make_node(["train:2"], None, []).status.images] == [("train:2",)]


def test_image_changes_are_not_reported() -> None:
    assert is_unchanged(make_node(["train:1"]), make_node(["other:1"], ["train:1"]))
