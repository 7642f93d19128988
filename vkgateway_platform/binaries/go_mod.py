"""The go.mod of a unit: its requirements, and the versions of its libraries."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vkgateway_platform.binaries.catalogue import BuildUnit

_STAGING = re.compile(r"^\s*(?:replace\s+)?(\S+)\s+=>\s+\./staging/src/\S+\s*$", re.MULTILINE)
_REPLACED = re.compile(r"^\s*(?:replace\s+)?(\S+\s+=>\s+\S+\s+v\S+)\s*$", re.MULTILINE)
_SETTINGS = re.compile(r"^(?:go|godebug)\s+[^(\s].*$", re.MULTILINE)
_REQUIRE = re.compile(r"^require\s+(?:\((.*?)^\)|([^(\n]*)$)", re.MULTILINE | re.DOTALL)
_REQUIRED = re.compile(r"^\s*([^\s/]\S*)\s+(v\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LibraryVersions:
    """Versions of the libraries of another project."""

    versions: Mapping[str, str]
    """Version of each module."""
    staging: tuple[str, ...]
    """Replace lines for modules in that project's own tree."""

    @classmethod
    def from_go_mod(cls, upstream: str, version: str) -> "LibraryVersions":
        """Return the versions in a project's go.mod at release `version`."""
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
    """Return a go.mod that requires the unit's modules at `version`.

    `upstream` is the text of the first module's go.mod; its Go version and GODEBUG settings stay. Modules in upstream's
    own tree are replaced by their published versions (see `_staging_lines`).

    `libraries` overrides the versions of the modules that it names. Go takes the newest required version, so every
    other version in `seen`, the graph of requirements, is excluded: Go then ignores the requirement.
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
        # The file names all modules, since Go reads the requirements of the named modules only.
        wanted = {**parse_requirements(upstream), **libraries.versions}
        lines += [f"require {module} {taken}" for module, taken in wanted.items()]
        lines += libraries.staging
        others = {pair for pair in seen if libraries.versions.get(pair[0], pair[1]) != pair[1]}
        lines += [f"exclude {module} {other}" for module, other in sorted(others)]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def _staging_lines(upstream: str, version: str) -> list[str]:
    """Return the lines for modules in upstream's own tree (k8s.io/api and so on, `./staging/src`).

    Upstream requires them as v0.0.0; they are published as v0.MINOR.PATCH and replaced by that. The go.mod does not
    require them: Go would read all of them, and some were never published. The published ones require each other by
    that version. It is excluded, so that every build requires v0.0.0. Otherwise Go would compile a library again for
    each required version, even if the same one is used.
    """
    staged = f"v0.{version.partition('.')[2]}"
    modules = dict.fromkeys(_STAGING.findall(upstream))
    return [
        *(f"replace {module} => {module} {staged}" for module in modules),
        *(f"exclude {module} {staged}" for module in modules),
    ]


def parse_requirements(text: str) -> dict[str, str]:
    """Return the version of each module that a go.mod requires."""
    blocks = (block or line for block, line in _REQUIRE.findall(text))
    return {module: version for block in blocks for module, version in _REQUIRED.findall(block)}


def modules_in_graph(graph: Iterable[str]) -> set[tuple[str, str]]:
    """Return every module and version in the output of `go mod graph`."""
    edges = (line.split() for line in graph)
    pairs = (word.partition("@") for edge in edges if len(edge) == 2 for word in edge)
    return {(module, version) for module, _, version in pairs if version.startswith("v")}
