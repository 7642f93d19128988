"""The go.mod that a unit is built by: what it requires, and at which versions its libraries are taken."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vkgateway.programs.binaries.catalogue import BuildUnit

_STAGING = re.compile(r"^\s*(?:replace\s+)?(\S+)\s+=>\s+\./staging/src/\S+\s*$", re.MULTILINE)
_REPLACED = re.compile(r"^\s*(?:replace\s+)?(\S+\s+=>\s+\S+\s+v\S+)\s*$", re.MULTILINE)
_SETTINGS = re.compile(r"^(?:go|godebug)\s+[^(\s].*$", re.MULTILINE)
_REQUIRE = re.compile(r"^require\s+(?:\((.*?)^\)|([^(\n]*)$)", re.MULTILINE | re.DOTALL)
_REQUIRED = re.compile(r"^\s*([^\s/]\S*)\s+(v\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LibraryVersions:
    """The versions at which another project takes its libraries."""

    versions: Mapping[str, str]
    """Module to version."""
    staging: tuple[str, ...]
    """The lines about modules of that project's own tree."""

    @classmethod
    def from_go_mod(cls, upstream: str, version: str) -> "LibraryVersions":
        """Those of a project's go.mod at its release `version`."""
        return cls(versions=parse_requirements(upstream), staging=tuple(_staging_lines(upstream, version)))


def render_go_mod(
    unit: BuildUnit,
    version: str,
    *,
    go_version: str,
    upstream: str,
    libraries: LibraryVersions | None = None,
    seen: Iterable[tuple[str, str]] = (),
) -> str:
    """A go.mod that requires the unit's modules at `version`.

    `upstream` is the text of the first module's go.mod; its Go version and GODEBUG settings are kept. Modules that
    upstream keeps in its own tree are replaced by what is published of them (see `_staging_lines`).

    With `libraries`, these versions count wherever they name one. Go takes the newest version that anything requires,
    so every other version that was `seen` in the graph of requirements is excluded: Go then ignores who requires it.
    """
    settings = _SETTINGS.findall(upstream) if unit.staging else []
    lines = ["module build", *(settings or [f"go {go_version}"])]
    lines += [f"require {module} v{version}" for module in unit.modules]
    if unit.staging:
        lines += _staging_lines(upstream, version)
    if unit.replacements is not None:
        lines += [f"replace {line}" for line in _REPLACED.findall(upstream)]
        lines += [f"replace {module} => {module} v{own}" for module, own in unit.replacements.items()]
    if libraries is not None:
        # All are named here, as Go reads the requirements of what is named here and of nothing else.
        wanted = {**parse_requirements(upstream), **libraries.versions}
        lines += [f"require {module} {taken}" for module, taken in wanted.items()]
        lines += libraries.staging
        others = {pair for pair in seen if libraries.versions.get(pair[0], pair[1]) != pair[1]}
        lines += [f"exclude {module} {other}" for module, other in sorted(others)]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def _staging_lines(upstream: str, version: str) -> list[str]:
    """What is said of modules that upstream keeps in its own tree (k8s.io/api and so on, `./staging/src`).

    They are required as v0.0.0 there, published as v0.MINOR.PATCH, and replaced by that. They are not required here:
    Go would then have to read all of them, and some were never published. As published they require each other by
    that version. It is excluded, so that v0.0.0 is what is required of all of them, whatever is built: Go compiles a
    library anew for each version that is required of it, though the same may be taken.
    """
    staged = f"v0.{version.partition('.')[2]}"
    modules = dict.fromkeys(_STAGING.findall(upstream))
    return [
        *(f"replace {module} => {module} {staged}" for module in modules),
        *(f"exclude {module} {staged}" for module in modules),
    ]


def parse_requirements(text: str) -> dict[str, str]:
    """Module to version, as a go.mod requires them."""
    blocks = (block or line for block, line in _REQUIRE.findall(text))
    return {module: version for block in blocks for module, version in _REQUIRED.findall(block)}


def modules_in_graph(graph: Iterable[str]) -> set[tuple[str, str]]:
    """Every module and version in the lines of `go mod graph`."""
    edges = (line.split() for line in graph)
    pairs = (word.partition("@") for edge in edges if len(edge) == 2 for word in edge)
    return {(module, version) for module, _, version in pairs if version.startswith("v")}
