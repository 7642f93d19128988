"""Feasible and preferred nodes of a shape, for all nodes of a pool together, by the rules of `node_matching`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vkgateway.api.objects import Taint
from vkgateway.scheduler.core.capacity.node_matching import (
    count_disliked_taints,
    has_untolerated_taint,
    meets_requirement,
)
from vkgateway.scheduler.core.snapshot import Node, Requirement, Shape

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

K = TypeVar("K")
V = TypeVar("V")

ABSENT = -1
"""Code of nodes without the label."""

_MAX_MEMO = 1024


@dataclass(frozen=True, slots=True)
class LabelColumn:
    """Values of one label over all nodes: the sorted values and, for each node, the index of its value or ABSENT."""

    values: tuple[str, ...]
    codes: IntArray
    number: Mapping[str, int]
    """Index of each value."""


class NodeFilter:
    """Rules of `node_matching` for all nodes: each distinct label value and taint set is evaluated once.

    The returned arrays are in node order, cached and read-only.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self.usable: BoolArray = np.array([node.usable for node in nodes], dtype=bool)
        """Nodes that accept new pods."""
        self.avoided: BoolArray = np.array([node.failed_gangs > 0 for node in nodes], dtype=bool)
        """Nodes that are chosen last (`Node.failed_gangs`)."""
        self.has_avoided = bool(self.avoided.any())
        self._taints, self._taint_codes = _number_taints([node.taints for node in nodes])
        self._columns: dict[str, LabelColumn] = {}
        self._masks: dict[object, BoolArray] = {}
        self._penalties: dict[object, IntArray] = {}
        self._image_positions: dict[str, list[int]] | None = None

    def label_column(self, label: str) -> LabelColumn:
        found = self._columns.get(label)
        if found is None:
            given = [node.labels.get(label) for node in self._nodes]
            values = tuple(sorted({value for value in given if value is not None}))
            number = {value: index for index, value in enumerate(values)}
            codes = np.array([ABSENT if value is None else number[value] for value in given], dtype=np.int64)
            found = self._columns[label] = LabelColumn(values, codes, number)
        return found

    def feasible_nodes(self, shape: Shape) -> BoolArray:
        """Return the mask of the usable nodes whose labels and taints let the shape run there."""
        key = shape.terms, shape.tolerations
        found = self._masks.get(key)
        if found is None:
            table = np.array(
                [not has_untolerated_taint(shape.tolerations, taints) for taints in self._taints], dtype=bool
            )
            found = self.usable & table[self._taint_codes]
            if shape.terms:
                found = found & self._matches_terms(shape.terms)
            _store_recent(self._masks, key, found)
        return found

    def selected_nodes(self, shape: Shape) -> BoolArray:
        """Return the mask of the nodes whose labels the shape's node affinity matches, usable or not."""
        if not shape.terms:
            return np.ones(len(self._nodes), dtype=bool)
        key = "selected", shape.terms
        found = self._masks.get(key)
        if found is None:
            found = self._matches_terms(shape.terms)
            _store_recent(self._masks, key, found)
        return found

    def taint_penalty(self, shape: Shape) -> IntArray:
        """Return for each node the number of PreferNoSchedule taints that the shape does not tolerate."""
        key = shape.tolerations
        found = self._penalties.get(key)
        if found is None:
            table = np.array(
                [count_disliked_taints(shape.tolerations, taints) for taints in self._taints], dtype=np.int64
            )
            found = table[self._taint_codes]
            _store_recent(self._penalties, key, found)
        return found

    def known_images(self, shape: Shape) -> frozenset[str]:
        """Return the images of the shape that any node has: the others do not matter."""
        return (
            frozenset(image for image in shape.images if image in self._positions_by_image())
            if shape.images
            else shape.images
        )

    def missing_images(self, shape: Shape) -> IntArray:
        """Return for each node the number of the shape's images that it would have to pull."""
        missing = np.full(len(self._nodes), len(shape.images), dtype=np.int64)
        for image in shape.images:
            missing[self._positions_by_image().get(image, [])] -= 1
        return missing

    def _positions_by_image(self) -> dict[str, list[int]]:
        if self._image_positions is None:
            self._image_positions = {}
            for position, node in enumerate(self._nodes):
                for image in node.images:
                    self._image_positions.setdefault(image, []).append(position)
        return self._image_positions

    def _matches_terms(self, terms: Sequence[Sequence[Requirement]]) -> BoolArray:
        found = np.zeros(len(self._nodes), dtype=bool)
        for term in terms:
            if term:
                found |= np.logical_and.reduce([self._matches_requirement(requirement) for requirement in term])
        return found

    def _matches_requirement(self, requirement: Requirement) -> BoolArray:
        column = self.label_column(requirement.key)
        # The last entry of the table belongs to ABSENT, which is -1.
        if requirement.operator in ("In", "NotIn"):
            # One name among thousands of nodes: only the named values are evaluated.
            named = requirement.operator == "In"
            table = np.full(len(column.values) + 1, not named and bool(requirement.values))
            table[[column.number[value] for value in requirement.values if value in column.number]] = named
        else:
            table = np.array(
                [
                    *(meets_requirement(requirement, value) for value in column.values),
                    meets_requirement(requirement, None),
                ]
            )
        return table[column.codes]


def _number_taints(taints: Sequence[tuple[Taint, ...]]) -> tuple[list[tuple[Taint, ...]], IntArray]:
    """Return the distinct taint sets and, for each node, the index of its set."""
    number: dict[tuple[Taint, ...], int] = {}
    codes = [number.setdefault(each, len(number)) for each in taints]
    return list(number), np.array(codes, dtype=np.int64)


def _store_recent(memo: dict[K, V], key: K, value: V) -> None:
    """Store a value and drop the oldest one when the memo is full."""
    if len(memo) >= _MAX_MEMO:
        del memo[next(iter(memo))]
    memo[key] = value
