"""What an image is made of: root file systems of Debian packages, Python packages, programs, files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from vkgateway.programs.binaries.published import PublishedPrograms

SUITE = "bookworm"
PYTHON = "3.11"
"""The Python of that Debian release."""
LIBRARIES = "/opt/python"
"""Where an image's Python packages lie."""


@dataclass(frozen=True, slots=True)
class Root:
    """A root file system that `mmdebstrap` makes."""

    packages: tuple[str, ...]
    """Debian packages beside the essential ones."""
    hooks: tuple[str, ...] = ()
    """Shell commands run at the end, on the machine; `$1` is the root."""


@dataclass(frozen=True, slots=True)
class File:
    """A text file of an image."""

    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Python packages that are published as source alone, and are compiled against what lies in the image's root."""

    packages: tuple[str, ...]
    """With versions."""
    tools: tuple[str, ...]
    """Debian packages beside those of the root that it takes to compile them; the image gets none of them."""
    environment: Mapping[str, str]
    """What their build is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An image: what lies in it, layer by layer, and what it runs."""

    name: str
    """Reference with tag: `vkgateway.local/openmpi:1`."""
    root: Root | None = None
    """None: an empty file system with nothing but folders, a user list and the programs."""
    libraries: tuple[str, ...] = ()
    """Python packages with versions, as wheels."""
    sources: tuple[str, ...] = ()
    """Python packages with versions that are published as source alone, without anything to compile."""
    compiled: Compiled | None = None
    """Only beside a root."""
    programs: Mapping[str, tuple[PublishedPrograms, str]] = field(default_factory=dict)
    """Path in the image to the program that lies there."""
    files: Mapping[str, File] = field(default_factory=dict)
    """Path in the image to what it holds."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""

    @property
    def file_name(self) -> str:
        """Of its archive: the last part of its name."""
        return f"{self.name.rpartition('/')[2].replace(':', '-')}.tar"

    @property
    def digest(self) -> str:
        """Short, and another as soon as anything about the image is."""
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
    """All that one page needs."""

    images: tuple[Recipe, ...]
    manifests: Mapping[str, tuple[PublishedPrograms, str]] = field(default_factory=dict)
    """Name of a file or folder beside the images, to what is kept with a program."""
