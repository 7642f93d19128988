"""`vkgateway binaries`: the programs that the platform runs: see, fetch, find and remove them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from vkgateway.cli.options import data_dir_option, run_async
from vkgateway.cli.output import Column, output_option, print_objects
from vkgateway.cli.progress import Progress
from vkgateway.model.errors import UnavailableError

if TYPE_CHECKING:
    from vkgateway.programs.binaries.resolver import Resolver

F = TypeVar("F", bound=Callable[..., Any])


class ProgramRow(msgspec.Struct, frozen=True, rename="camel"):
    """One line of `binaries list`."""

    program: str
    project: str
    version: str
    found: str
    """`named folder`, `PATH`, `cache`; empty if it must be fetched first."""
    path: str
    size_bytes: int
    source: str
    """How it came into the cache."""
    wanted: bool
    """False for what is in the cache though another version is asked for; `binaries prune` removes it."""


COLUMNS: tuple[Column[ProgramRow], ...] = (
    Column("program", lambda row: row.program),
    Column("version", lambda row: row.version),
    Column("found", lambda row: (row.found or "missing") if row.wanted else "old"),
    Column("size", lambda row: _format_megabytes(row.size_bytes) if row.size_bytes else "", "right"),
    Column("source", lambda row: row.source),
    Column("path", lambda row: row.path),
)


def resolver_options(command: F) -> F:
    """Adds `--kubernetes-version` and `--program-dir`."""
    from vkgateway.programs.binaries.catalogue import DEFAULT_VERSIONS

    for option in (
        data_dir_option,
        click.option(
            "--program-dir",
            "program_dirs",
            multiple=True,
            type=click.Path(path_type=Path, file_okay=False, exists=True),
            help="A folder of ready programs to look in first; may be given several times. "
            "[env: VKGATEWAY_PROGRAM_DIR]",
        ),
        click.option(
            "--kubernetes-version",
            default=DEFAULT_VERSIONS["kubernetes"],
            show_default=True,
            metavar="X.Y.Z",
            help="Any release from 1.30 on.",
        ),
    ):
        command = option(command)
    return command


@click.group(epilog="\b\nExample: vkgateway binaries fetch")
def binaries() -> None:
    """See, fetch and remove the programs that the platform runs.

    Each program is looked for in the folders named by --program-dir, on PATH (if the version fits), in the cache
    (~/.cache/vkgateway), at its official release, and at last built from the Go module proxy.
    """


@binaries.command("list", epilog="\b\nExample: vkgateway binaries list -o json")
@output_option
@resolver_options
@run_async
async def list_binaries(*, output: str, kubernetes_version: str, program_dirs: Sequence[Path], data_dir: Path) -> None:  # noqa: ARG001 - every command takes --data-dir
    """List all programs: which version is wanted, and where it is found."""
    resolver = _build_resolver(kubernetes_version, program_dirs, report=_discard_report)
    print_objects(await _program_rows(resolver), output=output, columns=COLUMNS, name=lambda row: row.program)


@binaries.command(epilog="\b\nExample: vkgateway binaries fetch etcd kubelet")
@click.argument("programs", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Also what only a real node needs (kubelet, containerd...).")
@resolver_options
@run_async
async def fetch(
    *,
    programs: tuple[str, ...],
    everything: bool,
    kubernetes_version: str,
    program_dirs: Sequence[Path],
    data_dir: Path,  # noqa: ARG001 - every command takes --data-dir
) -> None:
    """Get PROGRAMS that are not there yet (default: what a platform without a real node needs).

    The conformance suite and the programs in its images (e2e.test, agnhost, nonewprivs, sample-apiserver) are got by
    name only.
    """
    from vkgateway.programs.binaries.catalogue import CORE_PROGRAMS, STANDARD_PROGRAMS

    names = programs or (STANDARD_PROGRAMS if everything else CORE_PROGRAMS)
    with Progress() as progress:
        resolver = _build_resolver(
            kubernetes_version,
            program_dirs,
            report=progress.done,
            progress=progress if sys.stderr.isatty() else None,
        )
        found = await resolver.resolve(*names)
    for name, path in found.items():
        click.echo(f"{name:<24} {resolver.version_of(name):<10} {path}")


@binaries.command(epilog="\b\nExample: $(vkgateway binaries path kubectl) version --client")
@click.argument("programs", nargs=-1, required=True)
@resolver_options
@run_async
async def path(
    *,
    programs: tuple[str, ...],
    kubernetes_version: str,
    program_dirs: Sequence[Path],
    data_dir: Path,  # noqa: ARG001 - every command takes --data-dir
) -> None:
    """Print where each of PROGRAMS is; exit code 5 if one must be fetched first."""
    from vkgateway.programs.binaries.catalogue import DEFAULT_VERSIONS

    resolver = _build_resolver(kubernetes_version, program_dirs, report=_report_to_stderr)
    for name in programs:
        located = await resolver.locate(name)
        if located is None:
            version = resolver.version_of("kubectl")
            other = f" --kubernetes-version {version}" if version != DEFAULT_VERSIONS["kubernetes"] else ""
            raise UnavailableError(
                f"{name} {resolver.version_of(name)} is not here yet",
                hint=f"Get it with `vkgateway binaries fetch {name}{other}`.",
            )
        click.echo(located.path)


@binaries.command(epilog="\b\nExample: vkgateway binaries prune --dry-run")
@click.option("--all", "everything", is_flag=True, help="Also the current versions, and the Go that was fetched.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be removed.")
@resolver_options
def prune(
    *,
    everything: bool,
    dry_run: bool,
    kubernetes_version: str,
    program_dirs: Sequence[Path],
    data_dir: Path,  # noqa: ARG001 - every command takes --data-dir
) -> None:
    """Remove other versions than the current ones and unfinished builds from the cache.

    Programs that are running now stay.
    """
    resolver = _build_resolver(kubernetes_version, program_dirs, report=_report_to_stderr)
    gone = resolver.prune(everything=everything, dry_run=dry_run)
    for entry in gone:
        click.echo(entry.path)
    total = _format_megabytes(sum(entry.size for entry in gone))
    verb = "would be removed" if dry_run else "removed"
    click.echo(f"{len(gone)} programs {verb}, {total}.", err=True)


def _build_resolver(
    kubernetes_version: str,
    program_dirs: Sequence[Path],
    *,
    report: Callable[[str], None],
    progress: Callable[[str], None] | None = None,
) -> Resolver:
    from vkgateway.programs.binaries.resolver import Resolver

    return Resolver(kubernetes_version=kubernetes_version, program_dirs=program_dirs, report=report, progress=progress)


async def _program_rows(resolver: Resolver) -> list[ProgramRow]:
    from vkgateway.programs.binaries.catalogue import PROGRAMS

    cached = {entry.path: entry for entry in resolver.installed_entries()}
    rows = []
    for program, unit in PROGRAMS.items():
        located = await resolver.locate(program)
        place = str(located.path) if located else ""
        entry = cached.pop(place, None)
        size = located.path.stat().st_size if located else 0
        rows.append(
            ProgramRow(
                program,
                unit.project,
                resolver.version_of(program),
                located.source if located else "",
                place,
                size,
                entry.source if entry else "",
                True,
            )
        )
    rows += [
        ProgramRow(e.program, e.project, e.version, "cache", e.path, e.size, e.source, False) for e in cached.values()
    ]
    return rows


def _format_megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _discard_report(_: str) -> None:
    """`list` shows where each program is; what was passed over on the way is of no interest there."""


def _report_to_stderr(text: str) -> None:
    click.echo(text, err=True)
