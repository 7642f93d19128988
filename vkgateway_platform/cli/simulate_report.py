"""HTML report of simulations: one self-contained file with a table and plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vkgateway.api.errors import InputError, UnavailableError
from vkgateway_platform.cli.simulate_output import BUDGETS, LATE, METRICS, WAITS
from vkgateway_platform.simulate.result import SimulationResult
from vkgateway_platform.simulate.state import Sample

_TEMPLATE = "simulate_report.html.j2"
_MAX_POINTS = 300
"""Maximum number of points of a distribution's line."""

Figure = dict[str, Any]


def write_report(file: Path, results: Sequence[SimulationResult], *, gpus: float) -> None:
    """Write the report.

    Raises:
        UnavailableError: plotly is not installed.
        InputError: the file cannot be written.
    """
    text = render_page(results, gpus=gpus)
    try:
        file.write_text(text)
    except OSError as error:
        raise InputError(f"--report: cannot write {file}: {error.strerror}", hint="Choose a writable path.") from error


def require_plotly() -> None:
    """Raise UnavailableError if plotly is not installed."""
    try:
        import plotly  # noqa: F401
    except ImportError as error:
        raise UnavailableError(
            "the Python package plotly is not installed",
            hint="Run `pip install 'vkgateway-platform[simulate]'`, or omit --report.",
        ) from error


def render_page(results: Sequence[SimulationResult], *, gpus: float) -> str:
    """Return the report."""
    require_plotly()
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup
    from plotly.io import to_html
    from plotly.offline import get_plotlyjs

    environment = Environment(loader=PackageLoader("vkgateway_platform", "cli"), autoescape=True)
    plots = [
        (title, note, Markup(to_html(figure, full_html=False, include_plotlyjs=False, validate=False)))  # noqa: S704 - made by plotly from numbers and escaped names
        for title, note, figure in iterate_figures(results, gpus=gpus)
    ]
    return environment.get_template(_TEMPLATE).render(
        script=Markup(get_plotlyjs()),  # noqa: S704 - the library itself
        schedulers=[result.scheduler for result in results],
        metrics=[(name, [read(result) for result in results]) for name, read in METRICS],
        waits=_table_rows(WAITS, [(result.scheduler, waits) for result in results for waits in result.waits]),
        late=_table_rows(LATE, [(result.scheduler, gang) for result in results for gang in result.late]),
        budgets=_table_rows(BUDGETS, [(result.scheduler, use) for result in results for use in result.budgets]),
        budgets_head=["scheduler", *(name for name, _ in BUDGETS)],
        waits_head=["scheduler", *(name for name, _ in WAITS)],
        late_head=["scheduler", *(name for name, _ in LATE)],
        plots=plots,
    )


def _table_rows(fields: Sequence[tuple[str, Callable[[Any], str]]], rows: Sequence[tuple[str, Any]]) -> list[list[str]]:
    return [[name, *(read(row) for _, read in fields)] for name, row in rows]


def iterate_figures(results: Sequence[SimulationResult], *, gpus: float) -> Iterator[tuple[str, str, Figure]]:
    """Yield title, explanation and figure of each plot."""
    share = gpus or 1.0
    yield (
        "Allocation over time",
        "GPUs of running gangs, as a share of the cluster.",
        _time_series(results, lambda sample: sample.allocated / share, percent=True),
    )
    yield (
        "Fragmentation over time",
        "Idle GPUs on partly used nodes, as a share of the cluster.",
        _time_series(results, lambda sample: sample.fragmented / share, percent=True),
    )
    yield "Pending over time", "GPUs that pending gangs request.", _time_series(results, lambda sample: sample.pending)
    yield "Evictions over time", "Gangs evicted up to this time.", _evictions_figure(results)
    for band in ("guaranteed", "low"):
        yield (
            f"Waits, {band} band",
            "Share of the gangs that started within this time after their submission.",
            _waits_figure(results, band),
        )
    yield "GPUs by tenant", "Averages until the horizon, and the guarantee.", _tenants_figure(results)
    for result in results:
        yield f"Tenants over time, {result.scheduler}", "GPUs of running gangs.", _tenant_figure(result)


def _plot_layout(x: str, y: str, **more: Any) -> dict[str, Any]:
    axis = {"title": {"text": x}}
    return {
        "xaxis": axis | more.pop("xaxis", {}),
        "yaxis": {"title": {"text": y}, "rangemode": "tozero"} | more.pop("yaxis", {}),
        "height": 360,
        "margin": {"l": 60, "r": 20, "t": 10, "b": 50},
        "legend": {"orientation": "h", "y": 1.12},
        **more,
    }


def _sample_hours(result: SimulationResult) -> list[float]:
    return [sample.time / 3600 for sample in result.samples]


def _time_series(
    results: Sequence[SimulationResult], read: Callable[[Sample], float], *, percent: bool = False
) -> Figure:
    lines = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": result.scheduler,
            "x": _sample_hours(result),
            "y": list(map(read, result.samples)),
        }
        for result in results
    ]
    form = {"tickformat": ".0%"} if percent else {}
    return {"data": lines, "layout": _plot_layout("hours", "share" if percent else "GPUs", yaxis=form)}


def _evictions_figure(results: Sequence[SimulationResult]) -> Figure:
    lines = []
    for result in results:
        total, sums = 0, []
        for sample in result.samples:
            total += sample.evictions
            sums.append(total)
        lines.append(
            {"type": "scatter", "mode": "lines", "name": result.scheduler, "x": _sample_hours(result), "y": sums}
        )
    return {"data": lines, "layout": _plot_layout("hours", "gangs")}


def _waits_figure(results: Sequence[SimulationResult], band: str) -> Figure:
    lines = []
    for result in results:
        waits = result.first_waits.get(band, [])
        count = len(waits)
        at = (
            sorted({min(count - 1, number * count // _MAX_POINTS) for number in range(_MAX_POINTS)} | {count - 1})
            if count
            else []
        )
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "line": {"shape": "hv"},
                "name": result.scheduler,
                "x": [max(1.0, waits[number]) for number in at],
                "y": [(number + 1) / count for number in at],
            }
        )
    return {
        "data": lines,
        "layout": _plot_layout("seconds", "share of gangs", xaxis={"type": "log"}, yaxis={"tickformat": ".0%"}),
    }


def _tenants_figure(results: Sequence[SimulationResult]) -> Figure:
    bars: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": result.scheduler,
            "x": [tenant.tenant for tenant in result.tenants],
            "y": [tenant.gpus for tenant in result.tenants],
        }
        for result in results
    ]
    if results:
        tenants = results[0].tenants
        marks = {"symbol": "line-ew-open", "size": 24, "color": "black"}
        guarantees: dict[str, Any] = {"type": "scatter", "mode": "markers", "name": "guarantee", "marker": marks}
        guarantees |= {"x": [tenant.tenant for tenant in tenants], "y": [tenant.guarantee for tenant in tenants]}
        bars.append(guarantees)
    return {"data": bars, "layout": _plot_layout("tenant", "GPUs", barmode="group")}


def _tenant_figure(result: SimulationResult) -> Figure:
    hours = _sample_hours(result)
    lines = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "all",
            "name": tenant.tenant,
            "x": hours,
            "y": [sample.tenants.get(tenant.tenant, 0.0) for sample in result.samples],
        }
        for tenant in result.tenants
    ]
    return {"data": lines, "layout": _plot_layout("hours", "GPUs")}
