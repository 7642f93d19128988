"""Adaptation of jobs to a cluster without cpu, memory or GPU models, where the trace has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from vkgateway.arbiter.snapshot import Pool, Shape
from vkgateway.simulate.scenario import Job


def adapt_jobs(jobs: Iterable[Job], pools: Sequence[Pool]) -> tuple[Job, ...]:
    """Return the jobs without requests for resources, and conditions on labels, that no node of the cluster has."""
    nodes = [node for pool in pools for node in pool.nodes]
    known = {name for node in nodes for name in node.allocatable}
    labels = {name for node in nodes for name in node.labels}
    adapted: dict[Shape, Shape] = {}
    found = []
    for job in jobs:
        for shape in job.shapes:
            if shape not in adapted:
                adapted[shape] = _adapt_shape(shape, known, labels)
        shapes = tuple(adapted[shape] for shape in job.shapes)
        found.append(job if shapes == job.shapes else replace(job, shapes=shapes))
    return tuple(found)


def _adapt_shape(shape: Shape, resources: set[str], labels: set[str]) -> Shape:
    requests = tuple((name, amount) for name, amount in shape.requests if name in resources)
    terms = tuple(tuple(each for each in term if each.key in labels) for term in shape.terms)
    return replace(shape, requests=requests, terms=terms if all(terms) else ())
