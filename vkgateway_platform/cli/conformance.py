"""`vkgateway conformance`: the Kubernetes conformance tests in a tenant and directly on the compute cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.cli.options import cluster_options, run_async
from vkgateway.cli.output import Column, output_option, print_objects
from vkgateway_platform.cli.conformance_clusters import load_cluster, load_results, load_suite, provide_images

if TYPE_CHECKING:
    from vkgateway_platform.conformance.cases import Case
    from vkgateway_platform.conformance.comparison import ComparedCase, Comparison
    from vkgateway_platform.conformance.outcomes import Record
    from vkgateway_platform.conformance.runner import RerunMode

F = TypeVar("F", bound=Callable[..., Any])

CASE_COLUMNS: tuple[Column[Case], ...] = (
    Column("case", lambda case: case.name),
    Column("serial", lambda case: case.is_serial),
    Column("release", lambda case: case.release),
)

REPORT_COLUMNS: tuple[Column[ComparedCase], ...] = (
    Column("passed by", lambda case: case.verdict),
    Column("cause", lambda case: case.cause),
    Column("case", lambda case: case.name),
    Column("reason", lambda case: case.reason),
)

RUN_EPILOG = """\b
Examples:
  vkgateway conformance run --straight
  vkgateway conformance run alpha
  vkgateway conformance run alpha --focus 'sig-node.*Probe' --again all
  vkgateway conformance run alpha --often 3
  vkgateway conformance run alpha --suite ./e2e.test
"""


@click.group(
    short_help="Run the Kubernetes conformance tests.",
    epilog="\b\nExample: vkgateway conformance run alpha && vkgateway conformance report alpha",
)
def conformance() -> None:
    """Run the Kubernetes conformance tests in a tenant, and directly on the compute cluster as the baseline.

    The suite has the cluster's Kubernetes version and is built if necessary. Results are stored, so an interrupted run
    can be resumed.
    """


def selection_options(command: F) -> F:
    """Add the options that select cases; the command gets `focus`, `skip` and `only_subset`."""
    for option in (
        click.option("--subset", "only_subset", is_flag=True, help="Only the cases that this project's tests run."),
        click.option("--skip", multiple=True, metavar="REGEX", help="Skip cases whose name matches; repeatable."),
        click.option("--focus", multiple=True, metavar="REGEX", help="Only cases whose name matches; repeatable."),
    ):
        command = option(command)
    return command


def suite_option(command: F) -> F:
    """Add `--suite`; the command gets `suite_file`."""
    return click.option(
        "--suite",
        "suite_file",
        type=click.Path(path_type=Path, dir_okay=False, exists=True, resolve_path=True),
        help="The program e2e.test of the cluster's Kubernetes version. [default: from the cache, or built]",
    )(command)


@conformance.command("list", epilog="\b\nExample: vkgateway conformance list --focus sig-node -o name")
@selection_options
@suite_option
@click.option(
    "--kubernetes-version", metavar="X.Y.Z", help="Kubernetes version of the suite. [default: see `vkgateway version`]"
)
@output_option
@cluster_options
@run_async
async def list_cases(
    *,
    focus: tuple[str, ...],
    skip: tuple[str, ...],
    only_subset: bool,
    suite_file: Path | None,
    kubernetes_version: str | None,
    output: str,
    data_dir: Path,  # noqa: ARG001 - every command takes --data-dir
    kubeconfig: Path | None,  # noqa: ARG001 - and --kubeconfig
) -> None:
    """List the conformance cases of a Kubernetes version."""
    from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION
    from vkgateway.cli.progress import Progress

    with Progress() as progress:
        suite = await load_suite(kubernetes_version or DEFAULT_KUBERNETES_VERSION, file=suite_file, progress=progress)
    found = _select_cases(await suite.list_cases(), focus=focus, skip=skip, only_subset=only_subset)
    print_objects(found, output=output, columns=CASE_COLUMNS, name=lambda case: case.name)


@conformance.command(epilog="\b\nExample: vkgateway conformance prepare")
@suite_option
@click.option(
    "--kubernetes-version", metavar="X.Y.Z", help="Kubernetes version of the suite. [default: see `vkgateway version`]"
)
@cluster_options
@run_async
async def prepare(
    *,
    suite_file: Path | None,
    kubernetes_version: str | None,
    data_dir: Path,
    kubeconfig: Path | None,  # noqa: ARG001 - every command that names a cluster takes it
) -> None:
    """Build the suite and its images for the embedded real node; `run` does this if necessary."""
    from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION
    from vkgateway.cli.progress import Progress

    version = kubernetes_version or DEFAULT_KUBERNETES_VERSION
    with Progress() as progress:
        suite = await load_suite(version, file=suite_file, progress=progress)
        await provide_images(suite, data_dir=data_dir, version=version, progress=progress)


@conformance.command(epilog=RUN_EPILOG)
@click.argument("tenant", required=False)
@click.option("--straight", "on_baseline", is_flag=True, help="Run on the compute cluster itself, as the baseline.")
@selection_options
@click.option(
    "--again",
    type=click.Choice(["none", "failed", "all"]),
    default="none",
    show_default=True,
    help="Which cases with a result to run again.",
)
@click.option(
    "--often",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Repeat until each passing case was run this many times.",
)
@click.option("--workers", type=click.IntRange(min=1), default=4, show_default=True, help="Concurrent cases.")
@suite_option
@click.option("--suite-arg", "arguments", multiple=True, metavar="FLAG", help="Flag for the suite; repeatable.")
@click.option(
    "--make-images/--no-make-images",
    default=True,
    show_default=True,
    help="Build the suite's images for the embedded real node; other nodes pull them.",
)
@cluster_options
@click.pass_context
@run_async
async def run(
    ctx: click.Context,
    *,
    tenant: str | None,
    on_baseline: bool,
    focus: tuple[str, ...],
    skip: tuple[str, ...],
    only_subset: bool,
    again: RerunMode,
    often: int,
    workers: int,
    suite_file: Path | None,
    arguments: tuple[str, ...],
    make_images: bool,
    data_dir: Path,
    kubeconfig: Path | None,
) -> None:
    """Run the cases in TENANT, or with --straight on the compute cluster. Exit code 1 if a case fails.

    The command can be interrupted and repeated: cases with a result run again only with --again.
    """
    from vkgateway.cli.progress import Progress
    from vkgateway_platform.conformance import runner
    from vkgateway_platform.conformance.cluster import remove_leftovers

    if (tenant is None) is not on_baseline:
        raise InputError("give either a tenant or --straight", hint="Example: vkgateway conformance run alpha")
    with Progress() as progress:
        cluster = await load_cluster(tenant, data_dir=data_dir, kubeconfig=kubeconfig)
        suite = await load_suite(cluster.kubernetes_version, file=suite_file, progress=progress, arguments=arguments)
        cases = _select_cases(await suite.list_cases(), focus=focus, skip=skip, only_subset=only_subset)
        if make_images:
            await provide_images(suite, data_dir=data_dir, version=cluster.kubernetes_version, progress=progress)
        with runner.run_lock(cluster):
            await remove_leftovers(cluster.kubeconfig)
            record = await runner.run_repeatedly(
                cases, cluster, again=again, often=often, suite=suite, workers=workers, report=progress.done
            )
    ctx.exit(_print_summary(record, cases))


def _print_summary(record: Record, cases: Sequence[Case]) -> int:
    """Print a summary and return the exit code."""
    states = [outcome.state if (outcome := record.outcomes.get(case.name)) else "not run" for case in cases]
    passed = states.count("passed")
    counts = {state: states.count(state) for state in ("failed", "skipped", "not run")}
    others = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    click.echo(f"{record.cluster}: {passed} of {len(cases)} cases passed" + (f", {others}" if others else ""))
    return int("failed" in states or "not run" in states)


@conformance.command(epilog="\b\nExample: vkgateway conformance report alpha -o json")
@click.argument("tenant")
@selection_options
@suite_option
@click.option("--all", "everything", is_flag=True, help="Include the cases that both passed in the table.")
@output_option
@cluster_options
@run_async
async def report(
    *,
    tenant: str,
    focus: tuple[str, ...],
    skip: tuple[str, ...],
    only_subset: bool,
    suite_file: Path | None,
    everything: bool,
    output: str,
    data_dir: Path,
    kubeconfig: Path | None,  # noqa: ARG001 - every command that names a tenant takes it
) -> None:
    """Compare the results of TENANT with those of the compute cluster, with the known reasons of failures."""
    from vkgateway_platform.conformance import comparison

    record, baseline = load_results(data_dir, tenant), load_results(data_dir, "")
    if record is None:
        raise UnavailableError(
            f"no case was run in tenant {tenant!r} yet", hint=f"Run `vkgateway conformance run {tenant}`."
        )
    suite = await load_suite(record.kubernetes_version, file=suite_file, progress=None)
    cases = _select_cases(await suite.list_cases(), focus=focus, skip=skip, only_subset=only_subset)
    found = comparison.compare_records(cases, tenant=record, baseline=baseline, known=comparison.load_reasons())
    if output in {"json", "yaml"}:
        print_objects([found], output=output, columns=(), name=lambda _: tenant, single=True)
        return
    rows = [case for case in found.cases if everything or case.verdict != "both"]
    print_objects(
        rows, output=output, columns=REPORT_COLUMNS, name=lambda case: case.name, empty="Both passed all cases."
    )
    if output == "table":
        click.echo(_comparison_summary(found), err=True)


def _comparison_summary(found: Comparison) -> str:
    both = len(found.cases_with("both"))
    others = {
        "only by the tenant": len(found.cases_with("tenant")),
        "by neither": len(found.cases_with("neither")),
        "not run on both": len(found.cases_with("open")),
    }
    rest = ", ".join(f"{count} {words}" for words, count in others.items() if count)
    total = both + len(found.cases_with("baseline"))
    share = f"{found.tenant} passes {both} of the {total} cases that the baseline passes ({found.pass_ratio:.1%})"
    return f"{share}; {rest}." if rest else f"{share}."


def _select_cases(
    cases: Sequence[Case], *, focus: tuple[str, ...], skip: tuple[str, ...], only_subset: bool
) -> tuple[Case, ...]:
    from vkgateway_platform.conformance.cases import load_subset, select_cases

    found = select_cases(cases, focus=focus, skip=skip)
    if not only_subset:
        return found
    names = load_subset()
    return tuple(case for case in found if case.name in names)
