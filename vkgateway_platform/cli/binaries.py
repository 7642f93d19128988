"""`vkgateway binaries`: list, fetch, locate and remove the programs of the platform."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from vkgateway.api.errors import UnavailableError
from vkgateway.cli.options import data_dir_option, run_async
from vkgateway.cli.output import Column, output_option, print_objects
from vkgateway.cli.progress import Progress

if TYPE_CHECKING:
    from vkgateway_platform.binaries.resolver import Resolver

F = TypeVar("F", bound=Callable[..., Any])


class ProgramRow(msgspec.Struct, frozen=True, rename="camel"):
    """One line of `binaries list`."""

    program: str
    project: str
    version: str
    found: str
    """`named folder`, `PATH` or `cache`; empty if the program is missing."""
    path: str
    size_bytes: int
    source: str
    """Origin of a cached program."""
    wanted: bool
    """False for cached programs of other versions, which `binaries prune` removes."""


COLUMNS: tuple[Column[ProgramRow], ...] = (
    Column("program", lambda row: row.program),
    Column("version", lambda row: row.version),
    Column("found", lambda row: (row.found or "missing") if row.wanted else "old"),
    Column("size", lambda row: _format_megabytes(row.size_bytes) if row.size_bytes else "", "right"),
    Column("source", lambda row: row.source),
    Column("path", lambda row: row.path),
)


def resolver_options(command: F) -> F:
    """Add `--kubernetes-version` and `--program-dir`."""
    from vkgateway_platform.binaries.catalogue import DEFAULT_VERSIONS

    for option in (
        data_dir_option,
        click.option(
            "--program-dir",
            "program_dirs",
            multiple=True,
            type=click.Path(path_type=Path, file_okay=False, exists=True),
            help="Directory that is searched for programs first; repeatable. [env: VKGATEWAY_PROGRAM_DIR]",
        ),
        click.option(
            "--kubernetes-version",
            default=DEFAULT_VERSIONS["kubernetes"],
            show_default=True,
            metavar="X.Y.Z",
            help="Kubernetes version, 1.30 or later.",
        ),
    ):
        command = option(command)
    return command


@click.group(short_help="Manage the programs of the platform.", epilog="\b\nExample: vkgateway binaries fetch")
def binaries() -> None:
    """List, fetch, locate and remove the programs of the platform.

    Sources of a program, in this order: the directories of --program-dir, PATH (if the version matches), the cache
    (~/.cache/vkgateway), the official release, a build from the Go module proxy.
    """


@binaries.command("list", epilog="\b\nExample: vkgateway binaries list -o json")
@output_option
@resolver_options
@run_async
async def list_binaries(*, output: str, kubernetes_version: str, program_dirs: Sequence[Path], data_dir: Path) -> None:  # noqa: ARG001 - every command takes --data-dir
    """List all programs with their versions and locations."""
    resolver = _build_resolver(kubernetes_version, program_dirs, report=_discard_report)
    print_objects(await _program_rows(resolver), output=output, columns=COLUMNS, name=lambda row: row.program)


@binaries.command(epilog="\b\nExample: vkgateway binaries fetch etcd kubelet")
@click.argument("programs", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Include the programs of a real node (kubelet, containerd...).")
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
    """Fetch missing PROGRAMS (default: those of a platform without a real node).

    The conformance suite and the programs in its images (e2e.test, agnhost, nonewprivs, sample-apiserver) are fetched
    only by name.
    """
    from vkgateway_platform.binaries.catalogue import CORE_PROGRAMS, STANDARD_PROGRAMS

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
    """Print the paths of PROGRAMS; exit code 5 if one is missing."""
    from vkgateway_platform.binaries.catalogue import DEFAULT_VERSIONS

    resolver = _build_resolver(kubernetes_version, program_dirs, report=_report_to_stderr)
    for name in programs:
        located = await resolver.locate(name)
        if located is None:
            version = resolver.version_of("kubectl")
            other = f" --kubernetes-version {version}" if version != DEFAULT_VERSIONS["kubernetes"] else ""
            raise UnavailableError(
                f"{name} {resolver.version_of(name)} is missing",
                hint=f"Fetch it with `vkgateway binaries fetch {name}{other}`.",
            )
        click.echo(located.path)


@binaries.command(epilog="\b\nExample: vkgateway binaries prune --dry-run")
@click.option("--all", "everything", is_flag=True, help="Include the current versions and the downloaded Go.")
@click.option("--dry-run", is_flag=True, help="Only list the programs; remove nothing.")
@resolver_options
def prune(
    *,
    everything: bool,
    dry_run: bool,
    kubernetes_version: str,
    program_dirs: Sequence[Path],
    data_dir: Path,  # noqa: ARG001 - every command takes --data-dir
) -> None:
    """Remove old versions and unfinished builds from the cache.

    Running programs stay.
    """
    resolver = _build_resolver(kubernetes_version, program_dirs, report=_report_to_stderr)
    removed = resolver.prune(everything=everything, dry_run=dry_run)
    for entry in removed:
        click.echo(entry.path)
    total = _format_megabytes(sum(entry.size for entry in removed))
    verb = "would be removed" if dry_run else "removed"
    click.echo(f"{len(removed)} programs {verb}, {total}.", err=True)


def _build_resolver(
    kubernetes_version: str,
    program_dirs: Sequence[Path],
    *,
    report: Callable[[str], None],
    progress: Callable[[str], None] | None = None,
) -> Resolver:
    from vkgateway_platform.binaries.resolver import Resolver

    return Resolver(kubernetes_version=kubernetes_version, program_dirs=program_dirs, report=report, progress=progress)


async def _program_rows(resolver: Resolver) -> list[ProgramRow]:
    from vkgateway_platform.binaries.catalogue import PROGRAMS

    cached = {entry.path: entry for entry in resolver.cache.list_entries()}
    rows = []
    for program, unit in PROGRAMS.items():
        located = await resolver.locate(program)
        program_path = str(located.path) if located else ""
        entry = cached.pop(program_path, None)
        size = located.path.stat().st_size if located else 0
        rows.append(
            ProgramRow(
                program,
                unit.project,
                resolver.version_of(program),
                located.source if located else "",
                program_path,
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
    """Discard the resolver's messages: `list` shows only the results."""


def _report_to_stderr(text: str) -> None:
    click.echo(text, err=True)
