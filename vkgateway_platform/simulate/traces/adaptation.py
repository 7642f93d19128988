"""Changes to the jobs of a trace: a window, shorter runs, another load, and a cluster with other resources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from vkgateway.scheduler.core.snapshot import Pool, Shape
from vkgateway_platform.simulate.scenario import Job


def select_window(jobs: Iterable[Job], start: float, duration: float | None) -> tuple[Job, ...]:
    """Return the jobs of the window, with times relative to its start.

    A job that was submitted earlier, and would still run if it had not waited, is submitted at the start with the rest
    of its run. `duration` None: until the end of the trace.
    """
    found = []
    for job in jobs:
        at, rest = job.submitted - start, job.run
        if at < 0:
            at, rest = 0.0, job.run + at
        if rest > 0 and (duration is None or at < duration):
            found.append(replace(job, submitted=at, run=rest))
    return tuple(found)


def limit_runs(jobs: Iterable[Job], longest: float) -> tuple[Job, ...]:
    """Return the jobs, none of which runs longer than this."""
    return tuple(job if job.run <= longest else replace(job, run=longest) for job in jobs)


def scale_load(jobs: Sequence[Job], pools: Sequence[Pool], load: float) -> tuple[tuple[Job, ...], float]:
    """Move submissions together, or apart, until the jobs request this share of what the pools have in that time.

    Returns the jobs, and the time in which they are submitted. Run times stay.
    """
    units = {pool.key: pool.loss_resource for pool in pools}
    total = sum(node.allocatable.get(pool.loss_resource, 0) for pool in pools for node in pool.nodes)
    wanted = sum(job.run * shape.amount_of(units[job.pools[0]]) for job in jobs for shape in job.shapes)
    span = max((job.submitted for job in jobs), default=0.0)
    length = wanted / (load * total) if total else 0.0
    factor = length / span if span else 0.0
    return tuple(replace(job, submitted=job.submitted * factor) for job in jobs), length


def adapt_jobs(jobs: Iterable[Job], pools: Sequence[Pool]) -> tuple[Job, ...]:
    """Return the jobs without requests for resources, and conditions on labels, that no node of the cluster has.

    Traces name cpu, memory or GPU models.
    """
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
