"""Recipes of images: root file systems of Debian packages, Python packages, programs, files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from operators.published import PublishedPrograms

SUITE = "bookworm"
PYTHON = "3.11"
"""Python version of that Debian release."""
LIBRARIES = "/opt/python"
"""Directory of an image's Python packages."""


@dataclass(frozen=True, slots=True)
class Root:
    """Root file system that `mmdebstrap` builds."""

    packages: tuple[str, ...]
    """Debian packages in addition to the essential ones."""
    hooks: tuple[str, ...] = ()
    """Shell commands that run on the machine at the end of the build. `$1` is the root."""


@dataclass(frozen=True, slots=True)
class File:
    """Text file of an image."""

    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Python packages without wheels, compiled against the packages in the image's root."""

    packages: tuple[str, ...]
    """Packages with versions."""
    tools: tuple[str, ...]
    """Additional Debian packages for the compilation only."""
    environment: Mapping[str, str]
    """Environment of the build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Recipe of an image: its layers, and what it runs."""

    name: str
    """Reference with tag: `vkgateway.local/openmpi:1`."""
    root: Root | None = None
    """None: an empty file system with folders, a user list and the programs."""
    libraries: tuple[str, ...] = ()
    """Python packages with versions, as wheels."""
    sources: tuple[str, ...] = ()
    """Python packages with versions that are published as source only and need no compilation."""
    compiled: Compiled | None = None
    """Compiled packages, which need a root."""
    programs: Mapping[str, tuple[PublishedPrograms, str]] = field(default_factory=dict)
    """Programs by path in the image."""
    files: Mapping[str, File] = field(default_factory=dict)
    """Files by path in the image."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""

    @property
    def file_name(self) -> str:
        """File name of the archive, from the last part of the image's name."""
        return f"{self.name.rpartition('/')[2].replace(':', '-')}.tar"

    @property
    def digest(self) -> str:
        """Short digest that changes with any part of the image."""
        parts: list[object] = [
            SUITE,
            self.root and (self.root.packages, self.root.hooks),
            self.libraries,
            self.sources,
            sorted((path, published.name, program) for path, (published, program) in self.programs.items()),
            sorted((path, file.text, file.mode) for path, file in self.files.items()),
            (self.name, self.entrypoint, self.command, sorted(self.environment.items()), self.user),
        ]
        if self.compiled:
            parts.append((self.compiled.packages, self.compiled.tools, sorted(self.compiled.environment.items())))
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """All parts that one page needs."""

    images: tuple[Recipe, ...]
    manifests: Mapping[str, tuple[PublishedPrograms, str]] = field(default_factory=dict)
    """Names of files or folders next to the images, and the manifests of a program."""
    usage: str = ""
    """What to do with the files, in one sentence; empty: the page of the kit says it."""
