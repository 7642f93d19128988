"""Which images are on which nodes: only those that are asked for, looked at seldom, told only where they changed."""

from __future__ import annotations

from vkgateway.model.objects import Meta, NodeImage, NodeStatusView, NodeView
from vkgateway.sync.admission.node_images import NodeImages, requested_images

TRAIN, SERVE = frozenset({"train:1"}), frozenset({"serve:1"})


def node(name: str, *images: str) -> NodeView:
    return NodeView(
        metadata=Meta(name=name), status=NodeStatusView(images=tuple(NodeImage(names=(each,)) for each in images))
    )


def test_only_images_that_are_asked_for_are_told() -> None:
    images = NodeImages()

    assert images.update_images([node("a", "train:1", "serve:1"), node("b", "serve:1")], TRAIN, now=0) == {"a"}
    assert images.images_on("a") == TRAIN
    assert images.images_on("b") == frozenset()


def test_what_a_node_fetched_is_seen_after_a_while_and_what_it_threw_away() -> None:
    images = NodeImages()
    images.update_images([node("a"), node("b", "train:1")], TRAIN, now=0)
    later = [node("a", "train:1"), node("b")]

    assert images.update_images(later, TRAIN, now=299) == set()
    assert images.update_images(later, TRAIN, now=301) == {"a", "b"}
    assert (images.images_on("a"), images.images_on("b")) == (TRAIN, frozenset())
    assert images.update_images(later, TRAIN, now=302) == set()


def test_an_image_that_was_not_asked_for_before_is_looked_for_at_once() -> None:
    images, there = NodeImages(), [node("a", "train:1", "serve:1"), node("b", "train:1")]
    images.update_images(there, TRAIN, now=0)

    assert images.update_images(there, TRAIN | SERVE, now=1) == {"a"}
    assert images.images_on("a") == TRAIN | SERVE


def test_what_nobody_asks_for_any_more_is_told_until_it_is_looked_at_anew() -> None:
    images, there = NodeImages(), [node("a", "train:1", "serve:1"), node("b", "train:1")]
    images.update_images(there, TRAIN, now=0)

    assert images.update_images(there, SERVE, now=1) == {"a"}
    assert images.update_images(there, SERVE, now=301) == {"a", "b"}
    assert (images.images_on("a"), images.images_on("b")) == (SERVE, frozenset())


def test_a_clock_that_jumps_back_is_no_reason_to_wait() -> None:
    images = NodeImages()
    images.update_images([node("a")], TRAIN, now=1e9)

    assert images.update_images([node("a", "train:1")], TRAIN, now=0) == {"a"}


def test_what_all_tenants_ask_for() -> None:
    assert requested_images([]) == frozenset()
    assert requested_images([{"train:1": 2}, {"serve:1": 1, "train:1": 1}]) == TRAIN | SERVE
