"""Compute nodes in memory: images are kept once, and not more of them than a kubelet tells by default."""

from __future__ import annotations

import json

from vkgateway.model.objects import NodeView
from vkgateway.sync.compute.node_views import MOST_IMAGES, decode_node
from vkgateway.sync.compute.nodes import is_unchanged


def node(*images: list[str] | None, heartbeat: str = "") -> NodeView:
    told = [{"names": names, "sizeBytes": 1000} for names in images]
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]
    document = {"metadata": {"name": "host-1"}, "status": {"images": told, "conditions": conditions}}
    return decode_node(json.dumps(document).encode())


def test_nodes_share_the_images_that_both_have() -> None:
    one, two = node(["train:1", "train@sha256:0"], ["own:1"]), node(["train:1", "train@sha256:0"], ["other:1"])

    assert one.status.images[0].names == ("train:1", "train@sha256:0")
    assert one.status.images[0] is two.status.images[0]
    assert one.status.images[1] != two.status.images[1]


def test_a_node_without_images_and_one_with_too_many() -> None:
    assert node().status.images == ()
    assert len(node(*([f"image:{number}"] for number in range(1000))).status.images) == MOST_IMAGES
    assert len(node([f"name:{number}" for number in range(1000)]).status.images[0].names or ()) < 10


def test_an_image_that_has_lost_its_names_is_passed_over() -> None:
    """Kubelets tell of an image whose tag went to a newer one with null in place of names."""
    assert [image.names for image in node(["train:2"], None, []).status.images] == [("train:2",)]


def test_an_image_that_came_or_went_is_no_news() -> None:
    assert is_unchanged(node(["train:1"]), node(["other:1"], ["train:1"]))
