"""Scenario of `vkgateway simulate` from its options and input files."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from vkgateway.api.errors import InputError
from vkgateway.api.run_limits import parse_duration
from vkgateway.api.types import TenantBudget
from vkgateway.cli.replay import decision_log_path
from vkgateway.scheduler.core.past_share import PastShare, half_life_problem
from vkgateway.scheduler.core.snapshot import Band, Policy, Pool, Quota, Snapshot
from vkgateway.tenants.usage.ledger import MonthUsage, UsageLedger
from vkgateway_platform.simulate.cluster import equal_nodes, equal_quotas, named_quotas
from vkgateway_platform.simulate.scenario import Job, Scenario, Settings, sort_jobs
from vkgateway_platform.simulate.tenants import read_budgets
from vkgateway_platform.simulate.tenants import read_quotas as read_tenants
from vkgateway_platform.simulate.traces import decision_log, kubernetes, kueue, openb, philly
from vkgateway_platform.simulate.traces.adaptation import adapt_jobs, limit_runs, scale_load, select_window
from vkgateway_platform.simulate.traces.synthetic import GANG_SIZES, WorkloadParameters, generate_jobs

_MAX_RUN_SECONDS = 43_200.0
FORMATS = ("openb", "philly", "kueue", "log")
_FORMAT_BY_SUFFIX = {".csv": "openb", ".json": "philly", ".yaml": "kueue", ".yml": "kueue", ".jsonl": "log"}


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """Options that describe the scenario; None if they are not given."""

    nodes: tuple[int, int]
    nodes_file: Path | None
    tenants: int
    tenants_file: Path | None
    guaranteed: float
    trace: Path | None
    trace_format: str | None
    replay: bool
    usage_log: Path | None
    start: float
    duration: float | None
    load: float | None
    sizes: Mapping[int, float] | None
    low: float
    run: float
    longest: float | None
    checkpoint: float
    seed: int
    low_yields_to: str | None
    run_limits: str | None
    half_life: float | None
    notice: float | None
    grace: float | None
    recreate: float
    startup: float
    interval: float
    refresh: float
    warm_up: float
    data_dir: Path


@dataclass(frozen=True, kw_only=True)
class _TraceParts:
    """Cluster, tenants and jobs of a trace; None if the trace does not contain them."""

    pools: tuple[Pool, ...] | None = None
    quotas: tuple[Quota, ...] | None = None
    jobs: tuple[Job, ...] = ()
    duration: float | None = None
    begin: float = 0.0
    """When the trace begins, in seconds since the epoch; 0 for a trace without dates."""
    notice: float = 30.0
    grace: float = 60.0
    half_life: float = 0.0
    past_shares: tuple[PastShare, ...] = ()


def build_scenario(inputs: ScenarioOptions) -> Scenario:
    """Return the scenario. Raises InputError if it cannot be simulated."""
    if inputs.replay and inputs.trace is not None:
        raise InputError(f"--replay and --trace {inputs.trace} are both given", hint="Omit one of them.")
    trace = decision_log_path(inputs.data_dir) if inputs.replay else inputs.trace
    pools = _read_nodes(inputs.nodes_file) if inputs.nodes_file is not None else None
    if pools == ():
        raise InputError(f"nodes file {inputs.nodes_file} contains no nodes with GPUs", hint="Add nodes with GPUs.")
    if trace is None:
        parts = _generate_trace(inputs, pools)
    else:
        parts = _read_trace(trace, "log" if inputs.replay else _trace_format(trace, inputs.trace_format), inputs)
    pools = pools or parts.pools or (equal_nodes(*inputs.nodes),)
    pools = tuple(_with_options(pool, inputs) for pool in pools)
    quotas = _tenant_quotas(inputs, pools, parts)
    jobs = adapt_jobs((replace(job, checkpoint=inputs.checkpoint) for job in parts.jobs), pools)
    horizon = inputs.duration or parts.duration
    if trace is not None:
        jobs = select_window(jobs, inputs.start, inputs.duration)
    _validate_jobs(jobs, pools, quotas, trace)
    if trace is not None and inputs.longest is not None:
        jobs = limit_runs(jobs, inputs.longest)
    if trace is not None and inputs.load is not None:
        jobs, horizon = scale_load(jobs, pools, inputs.load)
    horizon = horizon or max(job.submitted for job in jobs)
    if inputs.warm_up and inputs.warm_up >= horizon:
        raise InputError(
            f"--warm-up {inputs.warm_up:g}s is not shorter than the trace", hint=f"The trace takes {horizon:g}s."
        )
    half_life = _half_life(inputs, parts)
    begin = parts.begin + (inputs.start if trace is not None else 0.0)
    budgets = _read_budgets(inputs, pools)
    settings = Settings(
        begin=begin,
        notice=parts.notice if inputs.notice is None else inputs.notice,
        grace=parts.grace if inputs.grace is None else inputs.grace,
        recreate=inputs.recreate,
        startup=inputs.startup,
        interval=inputs.interval,
        refresh=inputs.refresh,
        horizon=horizon,
        warm_up=inputs.warm_up,
        policy=Policy(half_life=half_life),
    )
    usage = _used_before(inputs.usage_log, begin) if budgets else ()
    scenario = Scenario(
        pools=pools,
        quotas=quotas,
        jobs=jobs,
        settings=settings,
        budgets=budgets,
        usage=usage,
        past_shares=parts.past_shares if half_life == parts.half_life and not inputs.start else (),
    )
    return sort_jobs(scenario)


def _half_life(inputs: ScenarioOptions, parts: _TraceParts) -> float:
    half_life = parts.half_life if inputs.half_life is None else inputs.half_life
    if problem := half_life_problem(half_life):
        raise InputError(f"--half-life {half_life:g}s {problem}", hint="Use a value like 24h or 7d, or 0.")
    return half_life


def _with_options(pool: Pool, inputs: ScenarioOptions) -> Pool:
    """Return the pool with the rules that the options change."""
    if inputs.low_yields_to is not None:
        pool = replace(pool, low_yields=inputs.low_yields_to == "GuaranteedBand")
    return pool if inputs.run_limits is None else _with_run_limits(pool, inputs.run_limits)


def _with_run_limits(pool: Pool, text: str) -> Pool:
    """Return the pool with these run limits: none, declared, or defaults by band. Raises InputError."""
    if text in ("none", "declared"):
        return replace(pool, enforces_limits=text == "declared", default_limits={})
    limits: dict[Band, float] = {}
    for part in text.split(","):
        band, _, duration = part.partition("=")
        try:
            limits[Band(band.strip())] = parse_duration(duration)
        except ValueError:
            raise InputError(
                f"--run-limits {text!r}: {part!r} is not a band with its limit",
                hint="Use none, declared, or limits like guaranteed=72h,low=12h.",
            ) from None
    return replace(pool, enforces_limits=True, default_limits=limits)


def _tenant_quotas(inputs: ScenarioOptions, pools: tuple[Pool, ...], parts: _TraceParts) -> tuple[Quota, ...]:
    if inputs.tenants_file is not None:
        return read_tenants(_read_documents(inputs.tenants_file), pools)
    if parts.quotas is not None:
        return parts.quotas
    names = sorted({job.tenant for job in parts.jobs})
    return named_quotas(pools, names, guaranteed=inputs.guaranteed)


def _read_budgets(inputs: ScenarioOptions, pools: Sequence[Pool]) -> dict[str, tuple[TenantBudget, ...]]:
    return read_budgets(_read_documents(inputs.tenants_file), pools) if inputs.tenants_file is not None else {}


def _validate_jobs(jobs: Sequence[Job], pools: Sequence[Pool], quotas: Sequence[Quota], trace: Path | None) -> None:
    """Raise InputError for jobs of unknown tenants or pools."""
    if not jobs:
        raise InputError(
            f"trace {trace} has no job in this time", hint="Set --start and --duration to a part with jobs."
        )
    known, tenants = {pool.key for pool in pools}, {quota.tenant for quota in quotas}
    for job in jobs:
        if job.tenant not in tenants:
            raise InputError(
                f"job {job.id}: tenant {job.tenant!r} does not exist", hint=f"Tenants: {', '.join(sorted(tenants))}."
            )
        if not known.intersection(job.pools):
            names = ", ".join(sorted(key[1] for key in known))
            raise InputError(
                f"job {job.id}: pool {job.pools[0][1]!r} does not exist", hint=f"Available pools: {names}."
            )


def _generate_trace(inputs: ScenarioOptions, pools: tuple[Pool, ...] | None) -> _TraceParts:
    duration = 86_400.0 if inputs.duration is None else inputs.duration
    for option, value in (("--run", inputs.run), ("--duration", duration), ("--longest", inputs.longest)):
        if value is not None and value <= 0:
            raise InputError(f"{option} {value:g}s is not above zero", hint="Give a duration like 20m or 24h.")
    pools = pools or (equal_nodes(*inputs.nodes),)
    sizes = [node.allocatable.get(pools[0].unit_resource, 0) // 1000 for node in pools[0].nodes]
    quotas = read_tenants(_read_documents(inputs.tenants_file), pools) if inputs.tenants_file is not None else None
    quotas = quotas or equal_quotas(pools[0], inputs.tenants, guaranteed=inputs.guaranteed)
    work = WorkloadParameters(
        gpus=sum(sizes),
        resource=pools[0].unit_resource,
        tenants=tuple(dict.fromkeys(quota.tenant for quota in quotas if quota.pool == pools[0].key)),
        load=1.0 if inputs.load is None else inputs.load,
        duration=duration,
        sizes=inputs.sizes or GANG_SIZES,
        per_pod=max(sizes),
        low=inputs.low,
        log_run=math.log(inputs.run),
        longest=_MAX_RUN_SECONDS if inputs.longest is None else inputs.longest,
    )
    jobs = generate_jobs(work, random.Random(inputs.seed))  # noqa: S311 - not for cryptography
    jobs = tuple(replace(job, pools=(pools[0].key,)) for job in jobs)
    return _TraceParts(pools=pools, quotas=quotas, jobs=jobs, duration=duration)


def _trace_format(trace: Path, given: str | None) -> str:
    found = given or _FORMAT_BY_SUFFIX.get(trace.suffix)
    if found is None:
        raise InputError(
            f"cannot tell the format of trace {trace} from its name", hint=f"Add --format {'|'.join(FORMATS)}."
        )
    return found


def _read_trace(trace: Path, format_: str, inputs: ScenarioOptions) -> _TraceParts:
    match format_:
        case "openb":
            names = _tenant_names(inputs)
            return _TraceParts(jobs=tuple(openb.read_pods(_read_csv(trace), names)))
        case "philly":
            return _TraceParts(jobs=philly.read_jobs(_read_bytes(trace), low=inputs.low))
        case "kueue":
            pools, quotas, jobs = kueue.read_generator(next(iter(_read_documents(trace)), None))
            return _TraceParts(pools=pools, quotas=quotas, jobs=jobs)
        case _:
            recorded = decision_log.read_decisions(_read_snapshots(trace), _gang_ends(inputs.usage_log))
            return _TraceParts(
                pools=recorded.pools,
                quotas=recorded.quotas,
                jobs=recorded.jobs,
                duration=recorded.duration,
                begin=recorded.begin,
                notice=recorded.notice,
                grace=recorded.grace,
                half_life=recorded.half_life,
                past_shares=recorded.past_shares,
            )


def _tenant_names(inputs: ScenarioOptions) -> tuple[str, ...]:
    if inputs.tenants_file is None:
        return tuple(f"t{number}" for number in range(inputs.tenants))
    pools = _read_nodes(inputs.nodes_file) if inputs.nodes_file is not None else (equal_nodes(*inputs.nodes),)
    return tuple(dict.fromkeys(quota.tenant for quota in read_tenants(_read_documents(inputs.tenants_file), pools)))


def _read_snapshots(trace: Path) -> Iterator[tuple[float, Snapshot]]:
    """Yield the snapshots of a decision log before and after each cycle's decisions; it logs no empty cycles."""
    from vkgateway.scheduler.core.outcome import apply_decisions
    from vkgateway.scheduler.service.decisionlog import LogEntry, read_entries

    _read_bytes(trace, most=1)
    for entry in read_entries(trace):
        if isinstance(entry, LogEntry) and entry.snapshot is not None:
            yield entry.time, entry.snapshot
            if entry.decisions.admits:
                yield entry.time, apply_decisions(entry.snapshot, entry.decisions, entry.time)


def _gang_ends(usage_log: Path | None) -> dict[str, float]:
    from vkgateway.tenants.usage.log import read_usage

    if usage_log is None:
        return {}
    _read_bytes(usage_log, most=1)
    return dict(decision_log.last_ends((usage.gang, usage.end) for usage in read_usage(usage_log)))


def _used_before(usage_log: Path | None, begin: float) -> tuple[MonthUsage, ...]:
    """Return what the usage log counted before the trace begins, of tenants that were not deleted since."""
    from vkgateway.tenants.usage.log import read_usage

    ledger = UsageLedger()
    if usage_log is not None:
        uids = {usage.tenant: usage.tenant_uid for usage in read_usage(usage_log)}
        ledger.count(
            msgspec.structs.replace(usage, tenant_uid="", end=min(usage.end, begin), lost=0.0)
            for usage in read_usage(usage_log)
            if usage.tenant_uid in ("", uids[usage.tenant])
        )
    return tuple(ledger.take_changed(begin))


def _read_nodes(file: Path) -> tuple[Pool, ...]:
    if file.suffix == ".csv":
        pools = openb.read_nodes(_read_csv(file))
    else:
        document = next(iter(_read_documents(file)), None)
        if kubernetes.is_list(document):
            return kubernetes.read_nodes(document)
        if isinstance(document, Mapping):
            document = document.get("nodes")
        if not isinstance(document, list) or not all(isinstance(row, Mapping) for row in document):
            raise InputError(f"nodes file {file} contains no list of nodes", hint="Use a list of {sn, gpu, model}.")
        pools = openb.read_nodes(document)
    return pools


def _read_bytes(file: Path, *, most: int = -1) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(most)
    except OSError as error:
        raise InputError(f"cannot read file {file}: {error.strerror}") from error


def _read_csv(file: Path) -> list[dict[str, Any]]:
    text = _read_bytes(file).decode(errors="replace")
    return list(csv.DictReader(text.splitlines()))


def _read_documents(file: Path) -> list[Any]:
    import yaml

    try:
        return [document for document in yaml.safe_load_all(_read_bytes(file)) if document is not None]
    except yaml.YAMLError as error:
        raise InputError(f"file {file} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
