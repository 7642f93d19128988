"""Which images are on which nodes: only those that are asked for, looked at seldom, told only where they changed."""

from __future__ import annotations

from vkgateway.model.objects import Meta, NodeImage, NodeStatusView, NodeView
from vkgateway.sync.admission.images import NodeImages, all_asked

TRAIN, SERVE = frozenset({"train:1"}), frozenset({"serve:1"})


def node(name: str, *images: str) -> NodeView:
    return NodeView(
        metadata=Meta(name=name), status=NodeStatusView(images=tuple(NodeImage(names=(each,)) for each in images))
    )


def test_only_images_that_are_asked_for_are_told() -> None:
    images = NodeImages()

    assert images.look([node("a", "train:1", "serve:1"), node("b", "serve:1")], TRAIN, now=0) == {"a"}
    assert images.on_node("a") == TRAIN
    assert images.on_node("b") == frozenset()


def test_what_a_node_fetched_is_seen_after_a_while_and_what_it_threw_away() -> None:
    images = NodeImages()
    images.look([node("a"), node("b", "train:1")], TRAIN, now=0)
    later = [node("a", "train:1"), node("b")]

    assert images.look(later, TRAIN, now=299) == set()
    assert images.look(later, TRAIN, now=301) == {"a", "b"}
    assert (images.on_node("a"), images.on_node("b")) == (TRAIN, frozenset())
    assert images.look(later, TRAIN, now=302) == set()


def test_an_image_that_was_not_asked_for_before_is_looked_for_at_once() -> None:
    images, there = NodeImages(), [node("a", "train:1", "serve:1"), node("b", "train:1")]
    images.look(there, TRAIN, now=0)

    assert images.look(there, TRAIN | SERVE, now=1) == {"a"}
    assert images.on_node("a") == TRAIN | SERVE


def test_what_nobody_asks_for_any_more_is_told_until_it_is_looked_at_anew() -> None:
    images, there = NodeImages(), [node("a", "train:1", "serve:1"), node("b", "train:1")]
    images.look(there, TRAIN, now=0)

    assert images.look(there, SERVE, now=1) == {"a"}
    assert images.look(there, SERVE, now=301) == {"a", "b"}
    assert (images.on_node("a"), images.on_node("b")) == (SERVE, frozenset())


def test_a_clock_that_jumps_back_is_no_reason_to_wait() -> None:
    images = NodeImages()
    images.look([node("a")], TRAIN, now=1e9)

    assert images.look([node("a", "train:1")], TRAIN, now=0) == {"a"}


def test_what_all_tenants_ask_for() -> None:
    assert all_asked([]) == frozenset()
    assert all_asked([{"train:1": 2}, {"serve:1": 1, "train:1": 1}]) == TRAIN | SERVE
