"""The catalogue of programs: their projects and releases, how they are built, and where they are published."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vkgateway.api.errors import InputError
from vkgateway_platform.binaries.errors import UnknownVersionError

OLDEST_KUBERNETES = (1, 30)

MAINS_FOLDER = Path(__file__).with_name("mains")
"""Directory of this project's `main` packages, one subdirectory each."""

DEFAULT_VERSIONS: Mapping[str, str] = {
    "kubernetes": "1.36.3",
    "etcd": "3.6.8",
    "kwok": "0.8.0",
    "containerd": "2.4.2",
    "coredns": "1.15.0",
}
"""Default release of each project."""


@dataclass(frozen=True, slots=True)
class PublishedRelease:
    """URLs of a project's releases. `{version}`, `{arch}` and `{program}` are filled in."""

    url: str
    checksum_url: str
    """A file with a SHA-256 alone, or with lines of `SHA-256  FILE NAME`."""
    member: str = ""
    """Path of the program in the archive at `url`; empty if `url` is the program."""


@dataclass(frozen=True, slots=True, eq=False)
class BuildUnit:
    """Programs that one run of `go build` builds together."""

    name: str
    project: str
    packages: Mapping[str, str]
    """Go import path of each program's `main` package; `./NAME` is the package `mains/NAME` of this project."""
    modules: tuple[str, ...]
    """Go modules required at the release's version; the first determines the Go version of the build."""
    variables: tuple[str, ...] = ()
    """Variables for the linker: `import/path.name={version}`; `{major}` and `{minor}` are filled in too."""
    staging: bool = False
    """Whether the first module's tree contains other modules (`./staging/src`), which are published as v0.MINOR.PATCH.
    """
    replacements: Mapping[str, str] | None = None
    """Version of a module that overrides the first module's replacement in its own tree; replacements by published
    versions stay. None: the build ignores its replacements.
    """
    release: PublishedRelease | None = None
    seconds: int = 60
    """Approximate build time with cold caches on two cores. The longest build starts first."""
    version_args: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Arguments with which a program prints its version, if not `--version`."""
    tests: frozenset[str] = frozenset()
    """Programs from test packages: `go test -c` builds each as `PACKAGE.test`."""
    versionless: frozenset[str] = frozenset()
    """Programs that print no version, or a version of another scheme. They are never taken from PATH, and not checked
    after a build.
    """
    after: str = ""
    """The unit with the most libraries in common; if both are fetched, that one is compiled first."""
    shares_versions: bool = False
    """Whether libraries are taken at the versions of the unit in `after`, so that Go compiles them once for both. This
    applies to the default releases; others are built as published.
    """
    on_request: bool = False
    """Whether the unit is fetched by name only: neither a platform nor a node needs it."""

    def main_digest(self, program: str) -> str:
        """Return the digest of a program's `main` package; empty if the package is not part of this project."""
        package = self.packages[program]
        if not package.startswith("./"):
            return ""
        digest = hashlib.sha256()
        for path in sorted((MAINS_FOLDER / package).iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()


_KUBERNETES = "k8s.io/kubernetes"
_KUBERNETES_VARIABLES = tuple(
    f"{package}.{name}"
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    for name in ("gitVersion=v{version}", "gitMajor={major}", "gitMinor={minor}")
)
_KUBERNETES_RELEASE = PublishedRelease(
    url="https://dl.k8s.io/release/v{version}/bin/linux/{arch}/{program}",
    checksum_url="https://dl.k8s.io/release/v{version}/bin/linux/{arch}/{program}.sha256",
)


def _kubernetes_unit(name: str, *programs: str, seconds: int, after: str = "") -> BuildUnit:
    return BuildUnit(
        name=name,
        project="kubernetes",
        packages={program: f"{_KUBERNETES}/cmd/{program}" for program in programs},
        modules=(_KUBERNETES,),
        variables=_KUBERNETES_VARIABLES,
        staging=True,
        release=_KUBERNETES_RELEASE,
        seconds=seconds,
        version_args={"kubectl": ("version", "--client")},
        after=after,
    )


UNITS: tuple[BuildUnit, ...] = (
    _kubernetes_unit(
        "kubernetes", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", seconds=400
    ),
    _kubernetes_unit("kubernetes-node", "kubelet", "kube-proxy", seconds=250, after="kubernetes"),
    BuildUnit(
        name="etcd",
        project="etcd",
        packages={
            "etcd": "go.etcd.io/etcd/server/v3",
            "etcdctl": "go.etcd.io/etcd/etcdctl/v3",
            "etcdutl": "go.etcd.io/etcd/etcdutl/v3",
        },
        modules=("go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/etcdctl/v3", "go.etcd.io/etcd/etcdutl/v3"),
        variables=("go.etcd.io/etcd/api/v3/version.Version={version}",),
        release=PublishedRelease(
            url="https://github.com/etcd-io/etcd/releases/download/v{version}/etcd-v{version}-linux-{arch}.tar.gz",
            checksum_url="https://github.com/etcd-io/etcd/releases/download/v{version}/SHA256SUMS",
            member="etcd-v{version}-linux-{arch}/{program}",
        ),
        seconds=80,
        version_args={"etcdctl": ("version",), "etcdutl": ("version",)},
    ),
    BuildUnit(
        # Its releases have no checksums, so it is always built; Go's checksum database verifies the source.
        name="kwok",
        project="kwok",
        packages={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
        modules=("sigs.k8s.io/kwok",),
        variables=("sigs.k8s.io/kwok/pkg/consts.Version={version}",),
        seconds=100,
        after="kubernetes",
        shares_versions=True,
    ),
    BuildUnit(
        name="containerd",
        project="containerd",
        packages={
            name: f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        modules=("github.com/containerd/containerd/v2",),
        variables=("github.com/containerd/containerd/v2/version.Version={version}",),
        release=PublishedRelease(
            url="https://github.com/containerd/containerd/releases/download/v{version}"
            "/containerd-static-{version}-linux-{arch}.tar.gz",
            checksum_url="https://github.com/containerd/containerd/releases/download/v{version}"
            "/containerd-static-{version}-linux-{arch}.tar.gz.sha256sum",
            member="bin/{program}",
        ),
        seconds=110,
        version_args={"containerd-shim-runc-v2": ("-v",)},
    ),
    BuildUnit(
        name="coredns",
        project="coredns",
        packages={"coredns": "./coredns"},
        modules=("github.com/coredns/coredns",),
        release=PublishedRelease(
            url="https://github.com/coredns/coredns/releases/download/v{version}/coredns_{version}_linux_{arch}.tgz",
            checksum_url="https://github.com/coredns/coredns/releases/download/v{version}"
            "/coredns_{version}_linux_{arch}.tgz.sha256",
            member="coredns",
        ),
        seconds=90,
        after="kubernetes",
        shares_versions=True,
        version_args={"coredns": ("-version",)},
    ),
    BuildUnit(
        # None of its programs is published with a checksum.
        name="conformance",
        project="kubernetes",
        packages={
            "e2e.test": f"{_KUBERNETES}/test/e2e",
            "agnhost": f"{_KUBERNETES}/test/images/agnhost",
            "nonewprivs": f"{_KUBERNETES}/test/images/nonewprivs",
            "sample-apiserver": "k8s.io/sample-apiserver",
        },
        modules=(_KUBERNETES,),
        variables=_KUBERNETES_VARIABLES,
        staging=True,
        seconds=300,
        after="kubernetes",
        tests=frozenset({"e2e.test"}),
        versionless=frozenset({"agnhost", "nonewprivs", "sample-apiserver"}),
        on_request=True,
    ),
)

PROGRAMS: Mapping[str, BuildUnit] = {program: unit for unit in UNITS for program in unit.packages}
"""The unit that builds each program."""

STANDARD_PROGRAMS: tuple[str, ...] = tuple(
    program for unit in UNITS if not unit.on_request for program in unit.packages
)
"""Programs of a platform with a real node."""

CORE_PROGRAMS: tuple[str, ...] = tuple(
    program for unit in UNITS if unit.name in ("kubernetes", "etcd", "kwok") for program in unit.packages
)
"""Programs of a platform without a real node."""

_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9a-z]+(\.[0-9a-z]+)*)?")


def unit_of(program: str) -> BuildUnit:
    """Return the unit that builds `program`.

    Raises:
        InputError: the program does not exist.
    """
    try:
        return PROGRAMS[program]
    except KeyError:
        raise InputError(f"no program is called {program!r}", hint="programs: " + ", ".join(sorted(PROGRAMS))) from None


def unit_named(name: str) -> BuildUnit:
    """Return the unit of that name, one of `UNITS`."""
    return next(unit for unit in UNITS if unit.name == name)


def check_version(project: str, version: str) -> str:
    """Return the version without a leading `v`.

    Raises:
        InputError: the project does not exist.
        UnknownVersionError: not of the form 1.2.3, or a Kubernetes older than 1.30.
    """
    if project not in DEFAULT_VERSIONS:
        raise InputError(f"no project is called {project!r}", hint="projects: " + ", ".join(sorted(DEFAULT_VERSIONS)))
    plain = version.removeprefix("v")
    if not _VERSION.fullmatch(plain):
        raise UnknownVersionError(
            f"{project} version {version!r} is not of the form 1.2.3",
            hint=f"the default is {DEFAULT_VERSIONS[project]}",
        )
    if project == "kubernetes" and major_minor(plain) < OLDEST_KUBERNETES:
        raise UnknownVersionError(
            f"Kubernetes {plain} is too old: 1.30 is the oldest release supported",
            hint=f"the default is {DEFAULT_VERSIONS[project]}",
        )
    return plain


def major_minor(version: str) -> tuple[int, int]:
    """Return the major and minor number."""
    major, minor, _ = version.split(".", 2)
    return int(major), int(minor)


def reports_version(program: str) -> bool:
    """Return whether a program prints its release."""
    return program not in PROGRAMS[program].versionless


def version_args(program: str) -> tuple[str, ...]:
    """Return the arguments with which a program prints its version."""
    return PROGRAMS[program].version_args.get(program, ("--version",))
