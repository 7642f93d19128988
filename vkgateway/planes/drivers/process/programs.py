"""Programs of control planes, per Kubernetes version."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import structlog

from vkgateway import platform_package
from vkgateway.planes.drivers.process.interfaces import ProgramResolver

log = structlog.get_logger(__name__)

_RESOLVER = "vkgateway_platform.binaries.resolver:Resolver"


class CachedPrograms:
    """Programs of one Kubernetes version. A search takes time, so a program that still exists is not searched again."""

    def __init__(self, resolver: ProgramResolver) -> None:
        self._resolver = resolver
        self._found: dict[str, Path] = {}

    async def resolve(self, *names: str) -> dict[str, Path]:
        """Return the path of each program; find or build it first."""
        if not all(name in self._found and os.access(self._found[name], os.X_OK) for name in names):
            self._found |= await self._resolver.resolve(*names)
        return {name: self._found[name] for name in names}


class ProgramVersions:
    """Programs by Kubernetes version: from `program_dirs` first, then from the cache."""

    def __init__(self, *, cache_dir: Path | None, program_dirs: Sequence[Path]) -> None:
        self._cache_dir = cache_dir
        self._program_dirs = program_dirs
        self._programs: dict[str, CachedPrograms] = {}

    def programs_for(self, version: str) -> CachedPrograms:
        """Return the programs of a version.

        Raises:
            InputError: the version is not supported.
            UnavailableError: the package that finds and builds programs is not installed.
        """
        if version not in self._programs:
            create = platform_package.load(_RESOLVER, needed_for="the driver 'process' of control planes")
            resolver: ProgramResolver = create(
                cache_dir=self._cache_dir,
                program_dirs=self._program_dirs,
                report=lambda text: log.info("programs", version=version, doing=text),
                kubernetes_version=version,
            )
            self._programs[version] = CachedPrograms(resolver)
        return self._programs[version]
