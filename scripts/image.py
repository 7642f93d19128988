"""Builds the gateway's container image with buildah, for one or several architectures, and writes it as an OCI archive.

The cache directory stores the base, the wheels and the archive, so a run without changes takes seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.requirements import Requirement

from operators.emulation import ARCHITECTURES, check_runnable
from operators.layers import run_checked, run_mmdebstrap, wheel_options
from operators.oci_archives import merge_archives, read_digest, read_platforms
from operators.recipes import PYTHON, SUITE
from vkgateway.api.errors import UnavailableError, VkgatewayError
from vkgateway.cli.main import print_error
from vkgateway.cli.progress import Progress
from vkgateway.version import __version__
from vkgateway_platform.binaries.cache import Cache
from vkgateway_platform.binaries.subprocesses import run_program
from vkgateway_platform.embedded.realnode.images import image_architecture
from vkgateway_platform.embedded.realnode.probe import find_tool, overlay_works
from vkgateway_platform.embedded.steps import Report

CHECKOUT = Path(__file__).resolve().parent.parent
FOLDER = CHECKOUT / "deploy/image"
NAME = f"vkgateway.local/vkgateway:{__version__}"

_INPUTS = (
    *("LICENSE", "README.md", "deploy/image", "pyproject.toml", "vkgateway"),
    *("scripts/image.py", "operators/oci_archives.py"),
)
_BASE_PACKAGES = ("ca-certificates", "libstdc++6", "python3", "python3-venv")
_BASE = f"localhost/vkgateway-base:{SUITE}-{hashlib.sha256(' '.join(_BASE_PACKAGES).encode()).hexdigest()[:8]}"
"""Name of the base in buildah's storage, without the architecture."""
# Licenses of the packages are part of the image.
_KEEP_LICENSES = "--dpkgopt=path-include=/usr/share/doc/*/copyright"
_TOOLS = ("buildah", "mmdebstrap")
"""Programs, each in the Debian package of its name."""
_FOREIGN_TOOLS = ("arch-test",)
"""Further programs for a base of another architecture: mmdebstrap needs them."""
_OTHER_BUILDERS = "Other systems: docs/how-to/build-an-image.md shows the build with docker or podman."
_LOCK_ENTRY = re.compile(r"^[a-z0-9].*?(?=^[a-z0-9]|\Z)", re.MULTILINE | re.DOTALL)
_STORED_ARCHIVES = 3
"""Number of archives for each choice of architectures that stay in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Choices of the user."""

    name: str = NAME
    """Reference of the image with tag."""
    base: str = ""
    """Image of Debian or Ubuntu to build on; empty to make one from Debian packages."""
    refresh: bool = False
    """Make or pull the base again, although it exists."""
    architectures: tuple[str, ...] = field(default_factory=lambda: (image_architecture(),))
    """Architectures as images name them: `amd64`, `arm64`."""


@dataclass(frozen=True, slots=True)
class Source:
    """State of the checkout, recorded in the image."""

    revision: str
    """Commit, with the suffix `-dirty` if files differ; `unknown` outside of a git checkout."""
    epoch: str
    """Time of the commit in seconds since 1970: the time of all files in the image."""

    @staticmethod
    def read(checkout: Path) -> Source:
        """Return the state of a checkout."""
        revision = _git(checkout, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
        return Source(revision or "unknown", _git(checkout, "log", "-1", "--format=%ct") or "0")


class Buildah:
    """Buildah with its storage in the cache, so that it neither reads nor changes the machine's images."""

    def __init__(self, folder: Path, *, log: Path, report: Report) -> None:
        driver = "overlay" if overlay_works(folder) else "vfs"
        storage = ("--storage-driver", driver, "--root", f"{folder}/{driver}", "--runroot", f"{folder}/{driver}-run")
        self._command = ("buildah", *storage)
        self._log = log
        self._report = report

    async def run(self, *arguments: str) -> list[str]:
        """Run a command of buildah and return its output.

        Raises:
            UnavailableError: it fails.
        """
        command = (*self._command, *arguments)
        code, lines = await run_program(command, env=os.environ, cwd=CHECKOUT, on_line=self._report_step, log=self._log)
        if code:
            reason = lines[-1] if lines else f"exit code {code}"
            raise UnavailableError(f"buildah {arguments[0]} failed: {reason}", hint=f"The log is {self._log}.")
        return lines

    async def has_image(self, name: str) -> bool:
        """Return whether the storage has an image."""
        lines = await self.run("images", "--format", "{{.Name}}:{{.Tag}}")
        return name in lines

    def _report_step(self, line: str) -> None:
        if "STEP " in line:
            self._report(f"building the image: {line.partition(': ')[0]}")


async def build_image(options: Options, *, report: Report, cache: Cache) -> Path:
    """Return the OCI archive of the image, built if an input changed.

    For several architectures, the archives of all of them are built and merged.

    Raises:
        UnavailableError: the user is not root, a tool is missing and cannot be installed, the machine cannot run
            programs for an architecture, or a step fails.
    """
    source = Source.read(CHECKOUT)
    folder = cache.root / "images" / "gateway"
    parts = [replace(options, architectures=(one,)) for one in options.architectures]
    archives = {folder / archive_name(part, source): part for part in parts}
    image = folder / archive_name(options, source)
    async with cache.locks.hold("image-gateway", report=report.done):
        wanted = {archive: part for archive, part in archives.items() if options.refresh or not archive.exists()}
        if wanted:
            await _prepare(list(wanted.values()), report=report)
            folder.mkdir(parents=True, exist_ok=True)
            buildah = Buildah(folder, log=_start_log(cache), report=report)
            for archive, part in wanted.items():
                await _build_archive(archive, buildah, part, source, report=report)
        if image not in archives and (wanted or not image.exists()):
            await asyncio.to_thread(merge_archives, list(archives), image, name=options.name)
        remove_old_archives(folder)
    return image


def archive_name(options: Options, source: Source) -> str:
    """Return the archive's file name: digest of the inputs, name of the image, architectures."""
    image = options.name.rpartition("/")[2].replace(":", "-")
    return f"{digest_inputs(CHECKOUT, options, source)}-{image}-{'+'.join(options.architectures)}.tar"


def digest_inputs(checkout: Path, options: Options, source: Source) -> str:
    """Return a short digest of everything that determines the image, except for the content of the base."""
    parts = [options.name, options.base, SUITE, *options.architectures, source.revision, source.epoch]
    for path in _find_inputs(checkout):
        parts += [str(path.relative_to(checkout)), hashlib.sha256(path.read_bytes()).hexdigest()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def select_requirements(lock: str, python: str) -> str:
    """Return the entries of a lock file that a Python version needs, without environment markers.

    pip evaluates markers for its own Python, also if it downloads for another one.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    entries = []
    for entry in _LOCK_ENTRY.findall(lock):
        first, _, hashes = entry.partition("\\\n")
        requirement = Requirement(first)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            requirement.marker = None
            entries.append(f"{requirement} \\\n{hashes}")
    return "".join(entries)


def parse_architectures(text: str) -> tuple[str, ...]:
    """Return the architectures of a list with commas, in the order of the image's index.

    Raises:
        argparse.ArgumentTypeError: one is unknown.
    """
    known = sorted({*ARCHITECTURES, image_architecture()})
    wanted = set(text.split(","))
    if unknown := sorted(wanted - set(known)):
        raise argparse.ArgumentTypeError(f"unknown architecture '{unknown[0]}'; known: {', '.join(known)}")
    return tuple(one for one in known if one in wanted)


def remove_old_archives(folder: Path) -> None:
    """Delete all archives but the latest ones for each choice of architectures, which ends a file's name."""
    newest_first = sorted(folder.glob("*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    seen: Counter[str] = Counter()
    for archive in newest_first:
        architectures = archive.name.rpartition("-")[2]
        seen[architectures] += 1
        if seen[architectures] > _STORED_ARCHIVES:
            archive.unlink()


async def _prepare(parts: Sequence[Options], *, report: Report) -> None:
    """Check that this machine can build each part, and install missing tools.

    Raises:
        UnavailableError: it cannot.
    """
    architectures = {one for part in parts for one in part.architectures}
    for one in sorted(architectures):
        check_runnable(one)
    foreign = () if architectures == {image_architecture()} else _FOREIGN_TOOLS
    tools = _TOOLS[:1] if parts[0].base else _TOOLS + foreign
    await _install_tools(tools, report=report)


def _start_log(cache: Cache) -> Path:
    log = cache.root / "logs" / "image.log"
    log.parent.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    return log


async def _install_tools(tools: Sequence[str], *, report: Report) -> None:
    """Install missing Debian packages.

    Raises:
        UnavailableError: the user is not root, or apt cannot install them.
    """
    missing = [tool for tool in tools if find_tool(tool) is None]
    if os.geteuid() != 0:
        raise UnavailableError("the build of the image needs root", hint=_OTHER_BUILDERS)
    if not missing:
        return
    hint = f"Debian: apt install {' '.join(missing)}. {_OTHER_BUILDERS}"
    if find_tool("apt-get") is None:
        raise UnavailableError(f"not installed: {', '.join(missing)}", hint=hint)
    report.done(f"installing Debian packages: {', '.join(missing)}")
    install = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends")
    try:
        try:
            await run_checked(*install, *missing, what="apt-get")
        except UnavailableError:
            await run_checked("apt-get", "update", "-qq", what="apt-get")
            await run_checked(*install, *missing, what="apt-get")
    except UnavailableError as error:
        raise UnavailableError(f"not installed: {', '.join(missing)}; {error}", hint=hint) from error


async def _build_archive(archive: Path, buildah: Buildah, options: Options, source: Source, *, report: Report) -> None:
    """Build the image for one architecture, and write its archive."""
    await buildah.run("rm", "--all")  # containers of an interrupted build
    base = await _provide_base(buildah, options, folder=archive.parent, report=report)
    await _build(buildah, options, source, base=base)
    await _write_archive(buildah, options.name, archive, report=report)


async def _provide_base(buildah: Buildah, options: Options, *, folder: Path, report: Report) -> list[str]:
    """Return the options of `buildah build` that name the base; make the base and download wheels if there is no image.

    Raises:
        UnavailableError: a step fails.
    """
    if options.base:
        return ["--build-arg", f"BASE={options.base}", *(["--pull-always"] if options.refresh else [])]
    (architecture,) = options.architectures
    base = f"{_BASE}-{architecture}"
    if options.refresh or not await buildah.has_image(base):
        await _make_base(buildah, base, architecture, archive=folder / "base.unfinished", report=report)
    wheels = await _download_wheels(folder / "wheels" / architecture, architecture, report=report)
    return ["--build-arg", f"BASE={base}", "--pull-never", "--volume", f"{wheels}:/wheels:ro"]


async def _make_base(buildah: Buildah, name: str, architecture: str, *, archive: Path, report: Report) -> None:
    """Make the base from Debian packages."""
    report.done(f"making the base from packages of Debian {SUITE} for {architecture}")
    foreign = () if architecture == image_architecture() else (f"--architectures={architecture}",)
    try:
        await run_mmdebstrap(str(archive), _BASE_PACKAGES, options=("--format=tar", _KEEP_LICENSES, *foreign))
        container = (await buildah.run("from", "--arch", architecture, "scratch"))[-1]
        await buildah.run("add", container, str(archive), "/")
        await buildah.run("commit", "--rm", container, name)
    finally:
        await asyncio.to_thread(archive.unlink, missing_ok=True)


async def _download_wheels(folder: Path, architecture: str, *, report: Report) -> Path:
    """Return a directory in `folder` with the wheels of the lock files; wheels of other lock files are deleted.

    The build itself needs no network: a proxy or an authority of this machine is unknown there.
    """
    locks = (FOLDER / "requirements.lock", FOLDER / "build.lock")
    wanted = "".join(select_requirements(lock.read_text(), PYTHON) for lock in locks)
    target = folder / hashlib.sha256(wanted.encode()).hexdigest()[:12]
    if not target.exists():
        report.done(f"downloading wheels for {architecture}")
        requirements = folder / "requirements.txt"
        await asyncio.to_thread(_replace_folder, folder, {requirements.name: wanted})
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        unfinished = target.with_suffix(".unfinished")
        what = ("--require-hashes", f"--requirement={requirements}", f"--dest={unfinished}")
        await run_checked(*pip, *wheel_options(architecture), *what, what="pip")
        await asyncio.to_thread(unfinished.rename, target)
    return target


def _replace_folder(folder: Path, files: Mapping[str, str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


async def _build(buildah: Buildah, options: Options, source: Source, *, base: Sequence[str]) -> None:
    values = {"SOURCE_DATE_EPOCH": source.epoch, "VERSION": __version__, "REVISION": source.revision}
    arguments = [part for key, value in values.items() for part in ("--build-arg", f"{key}={value}")]
    (architecture,) = options.architectures
    form = ("--arch", architecture, "--format", "oci", "--timestamp", source.epoch)
    steps = ("--isolation", "chroot", "--layers=false")
    file = ("--file", str(FOLDER / "Containerfile"), "--tag", options.name)
    await buildah.run("build", *form, *steps, *base, *arguments, *file, str(CHECKOUT))


async def _write_archive(buildah: Buildah, name: str, archive: Path, *, report: Report) -> None:
    """Write the archive under a temporary name and rename it, so that an existing archive is complete."""
    report("writing the archive")
    new = archive.with_suffix(".new")
    new.unlink(missing_ok=True)
    await buildah.run("push", "--format", "oci", name, f"oci-archive:{new}:{name}")
    new.replace(archive)
    await buildah.run("rmi", "--prune", "--force")


def _find_inputs(checkout: Path) -> Iterator[Path]:
    for name in _INPUTS:
        path = checkout / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (one for one in found if one.is_file() and "__pycache__" not in one.parts)


def _git(checkout: Path, *arguments: str) -> str:
    """Return the output of git; empty without git or outside of a checkout."""
    if find_tool("git") is None:
        return ""
    command = ("git", "-C", str(checkout), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Build the image, print its name, digest, archive and size, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make image", description=__doc__)
    parser.add_argument("--name", default=NAME, help="reference of the image [default: %(default)s]")
    parser.add_argument("--base", default="", help="image to build on [default: one made from Debian packages]")
    parser.add_argument("--refresh", action="store_true", help="make or pull the base again")
    parser.add_argument(
        "--arch",
        type=parse_architectures,
        default=image_architecture(),
        metavar="ARCH,...",
        help=f"architectures of the image: {', '.join(ARCHITECTURES)} [default: %(default)s]",
    )
    given = parser.parse_args()
    options = Options(name=given.name, base=given.base, refresh=given.refresh, architectures=given.arch)
    try:
        with Progress() as progress:
            archive = asyncio.run(build_image(options, report=progress, cache=Cache(Cache.default_root())))
    except VkgatewayError as error:
        print_error(str(error), hint=error.hint)
        return error.exit_code
    print(f"image    {options.name}")
    print(f"platform {', '.join(read_platforms(archive))}")
    print(f"digest   {read_digest(archive)}")
    print(f"archive  {archive}")
    print(f"size     {archive.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
