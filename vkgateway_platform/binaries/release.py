"""Downloads of official releases, verified against the published checksum."""

import asyncio
import hashlib
import platform
import ssl
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from vkgateway_platform.binaries import errors
from vkgateway_platform.binaries.catalogue import BuildUnit, PublishedRelease

if TYPE_CHECKING:
    import aiohttp

_CONNECT_SECONDS = 3.0
_READ_SECONDS = 30.0
_CHUNK = 1024 * 1024
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x"}


class NoReleaseError(Exception):
    """The release is not available from its project; other sources may have it."""


@dataclass(slots=True)
class Downloader:
    """Downloads releases. A host that did not answer is not tried again in the same run."""

    report: Callable[[str], None]
    unreachable: dict[str, str] = field(default_factory=dict)

    async def fetch_unit(self, unit: BuildUnit, version: str, *, folder: Path) -> dict[str, Path]:
        """Download every program of `unit` into `folder` and return the paths.

        Raises:
            NoReleaseError: nothing is published, or the host is unreachable.
            ChecksumError: the download does not match the published checksum.
        """
        if unit.release is None:
            raise NoReleaseError("nothing is published with a checksum")
        import aiohttp

        timeout = aiohttp.ClientTimeout(connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
            return {
                program: await self._fetch_program(session, unit.release, program, version, folder=folder)
                for program in unit.packages
            }

    async def _fetch_program(
        self, session: "aiohttp.ClientSession", release: PublishedRelease, program: str, version: str, *, folder: Path
    ) -> Path:
        values = {"version": version, "arch": go_architecture(), "program": program}
        url = release.url.format(**values)
        file = folder / url.rpartition("/")[2]
        if not file.exists():
            published = await self._fetch_text(session, release.checksum_url.format(**values))
            expected = parse_checksum(published, name=file.name)
            self.report(f"downloading {url}")
            found = await self._download_file(session, url, file=file)
            if found != expected:
                file.unlink()
                raise errors.checksum_error(url, detail=f"SHA-256 is {found}, published is {expected}")
        if not release.member:
            return file
        return await asyncio.to_thread(extract_member, file, release.member.format(**values), folder / "bin" / program)

    async def _fetch_text(self, session: "aiohttp.ClientSession", url: str) -> str:
        host = urlsplit(url).hostname or ""
        if host in self.unreachable:
            raise NoReleaseError(self.unreachable[host])
        try:
            async with session.get(url) as response:
                if response.status != 200:
                    raise NoReleaseError(f"{url} answers {response.status}")
                return await response.text()
        except _network_errors() as error:
            self.unreachable[host] = f"{host} cannot be reached ({_short_reason(error)})"
            raise NoReleaseError(self.unreachable[host]) from error

    async def _download_file(self, session: "aiohttp.ClientSession", url: str, *, file: Path) -> str:
        """Download into `file` and return its SHA-256; the caller deletes the directory of an unfinished file."""
        digest = hashlib.sha256()
        try:
            async with session.get(url) as response:
                if response.status != 200:
                    raise NoReleaseError(f"{url} answers {response.status}")
                with file.open("wb") as output:
                    async for chunk in response.content.iter_chunked(_CHUNK):
                        digest.update(chunk)
                        output.write(chunk)
        except _network_errors() as error:
            raise NoReleaseError(f"{url} was interrupted ({_short_reason(error)})") from error
        return digest.hexdigest()


def parse_checksum(text: str, *, name: str) -> str:
    """Return the SHA-256 of the file `name` in a checksum file; a single checksum matches any name.

    Raises:
        NoReleaseError: the file has no checksum for `name`.
    """
    rows = [line.split() for line in text.splitlines() if line.strip()]
    for row in rows:
        if len(row) == 2 and row[1].lstrip("*").rpartition("/")[2] == name:
            return row[0].lower()
    if len(rows) == 1 and len(rows[0]) == 1 and len(rows[0][0]) == 64:
        return rows[0][0].lower()
    raise NoReleaseError(f"the published checksums have no entry for {name}")


def extract_member(archive: Path, member: str, target: Path) -> Path:
    """Extract one program from an archive.

    Raises:
        NoReleaseError: the archive does not contain it.
    """
    target.parent.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        try:
            source = tar.extractfile(member)
        except KeyError:
            source = None
        if source is None:
            raise NoReleaseError(f"{archive.name} does not contain {member}")
        with source, target.open("wb") as output:
            while chunk := source.read(_CHUNK):
                output.write(chunk)
    return target


def go_architecture() -> str:
    """Return this machine's architecture as Go names it."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def _network_errors() -> tuple[type[BaseException], ...]:
    import aiohttp

    return (aiohttp.ClientError, TimeoutError, ssl.SSLError, ConnectionError)


def _short_reason(error: BaseException) -> str:
    """Return the innermost reason of an aiohttp error: `Name or service not known` without host and port."""
    cause = getattr(error, "os_error", error)
    reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return "no answer in time" if isinstance(error, TimeoutError) else str(reason)[:160]
