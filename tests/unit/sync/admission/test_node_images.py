"""Images on nodes: only requested ones, read rarely, and reported only when they change."""

from __future__ import annotations

from vkgateway.api.objects import Meta, NodeImage, NodeStatusView, NodeView
from vkgateway.scheduler.service.occupancy import NodeImages, requested_images

TRAIN, SERVE = frozenset({"train:1"}), frozenset({"serve:1"})


def make_node(name: str, *images: str) -> NodeView:
    return NodeView(
        metadata=Meta(name=name), status=NodeStatusView(images=tuple(NodeImage(names=(each,)) for each in images))
    )


def test_only_requested_images_are_reported() -> None:
    images = NodeImages()

    assert images.update_images([make_node("a", "train:1", "serve:1"), make_node("b", "serve:1")], TRAIN, now=0) == {
        "a"
    }
    assert images.images_on("a") == TRAIN
    assert images.images_on("b") == frozenset()


def test_pulled_and_removed_images_are_seen_after_a_while() -> None:
    images = NodeImages()
    images.update_images([make_node("a"), make_node("b", "train:1")], TRAIN, now=0)
    later = [make_node("a", "train:1"), make_node("b")]

    assert images.update_images(later, TRAIN, now=299) == set()
    assert images.update_images(later, TRAIN, now=301) == {"a", "b"}
    assert (images.images_on("a"), images.images_on("b")) == (TRAIN, frozenset())
    assert images.update_images(later, TRAIN, now=302) == set()


def test_newly_requested_image_is_looked_up_immediately() -> None:
    images, there = NodeImages(), [make_node("a", "train:1", "serve:1"), make_node("b", "train:1")]
    images.update_images(there, TRAIN, now=0)

    assert images.update_images(there, TRAIN | SERVE, now=1) == {"a"}
    assert images.images_on("a") == TRAIN | SERVE


def test_unrequested_image_is_reported_until_the_next_lookup() -> None:
    images, there = NodeImages(), [make_node("a", "train:1", "serve:1"), make_node("b", "train:1")]
    images.update_images(there, TRAIN, now=0)

    assert images.update_images(there, SERVE, now=1) == {"a"}
    assert images.update_images(there, SERVE, now=301) == {"a", "b"}
    assert (images.images_on("a"), images.images_on("b")) == (SERVE, frozenset())


def test_backward_clock_jump_does_not_delay() -> None:
    images = NodeImages()
    images.update_images([make_node("a")], TRAIN, now=1e9)

    assert images.update_images([make_node("a", "train:1")], TRAIN, now=0) == {"a"}


def test_requests_of_all_tenants_are_merged() -> None:
    assert requested_images([]) == frozenset()
    assert requested_images([{"train:1": 2}, {"serve:1": 1, "train:1": 1}]) == TRAIN | SERVE
