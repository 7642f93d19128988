"""The programs there are: which project and release each belongs to, how it is built, where it is published."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vkgateway.model.errors import InputError
from vkgateway.programs.binaries.errors import UnknownVersionError

OLDEST_KUBERNETES = (1, 30)

MAINS_FOLDER = Path(__file__).with_name("mains")
"""Our own `main` packages, one folder for each."""

DEFAULT_VERSIONS: Mapping[str, str] = {
    "kubernetes": "1.36.3",
    "etcd": "3.6.8",
    "kwok": "0.8.0",
    "containerd": "2.4.2",
    "coredns": "1.15.0",
}
"""Project to the release taken unless another is asked for."""


@dataclass(frozen=True, slots=True)
class PublishedRelease:
    """Where a project publishes its programs. `{version}`, `{arch}` and `{program}` are filled in."""

    url: str
    checksum_url: str
    """A file with the SHA-256 alone, or with lines of `SHA-256  FILE NAME`."""
    member: str = ""
    """The program's path inside the archive at `url`; empty if `url` is the program itself."""


@dataclass(frozen=True, slots=True, eq=False)
class BuildUnit:
    """Programs that are built together, by one run of `go build`."""

    name: str
    project: str
    packages: Mapping[str, str]
    """Program to Go import path of its `main` package; `./NAME` is one of ours, kept in `mains/NAME`."""
    modules: tuple[str, ...]
    """Go modules required at the release's version; the first tells the Go version to build with."""
    variables: tuple[str, ...] = ()
    """Set by the linker: `import/path.name={version}`; `{major}` and `{minor}` are filled in as well."""
    staging: bool = False
    """The first module keeps other modules in its own tree (`./staging/src`), published as v0.MINOR.PATCH."""
    replacements: Mapping[str, str] | None = None
    """Module to the version taken in place of what the first module replaces it by in its own tree; its replacements by
    published versions are then kept as they are. None: its replacements are none of the build's."""
    release: PublishedRelease | None = None
    seconds: int = 60
    """What a build alone with cold caches takes on two cores, roughly. The longest build begins first."""
    version_args: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Program to the arguments that make it tell its version, where these are not `--version`."""
    tests: frozenset[str] = frozenset()
    """Programs whose package is a test package: `go test -c` builds them, each by name `PACKAGE.test`."""
    versionless: frozenset[str] = frozenset()
    """Programs that tell no version, or one of their own: they are never taken from PATH, and not asked when built."""
    after: str = ""
    """The unit that has most libraries in common with this one: if both are wanted, that is compiled first."""
    shares_versions: bool = False
    """Libraries are taken at the versions of the unit in `after`, so that Go compiles them once for both. So it is with
    the default releases; another one is built as published."""
    on_request: bool = False
    """Fetched by name only: neither a platform nor a node needs it."""

    def main_digest(self, program: str) -> str:
        """Return the digest of the program's `main` package, where that is one of ours; empty: it is not."""
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
        # Its releases carry no checksums, so it is always built: Go's checksum database vouches for the source.
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
        # Nothing of it is published as a program with a checksum of its own.
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
"""Every program's name to the unit that it is built in."""

STANDARD_PROGRAMS: tuple[str, ...] = tuple(
    program for unit in UNITS if not unit.on_request for program in unit.packages
)
"""All that a platform with a real node runs."""

CORE_PROGRAMS: tuple[str, ...] = tuple(
    program for unit in UNITS if unit.name in ("kubernetes", "etcd", "kwok") for program in unit.packages
)
"""What a platform without a real node runs."""

_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9a-z]+(\.[0-9a-z]+)*)?")


def unit_of(program: str) -> BuildUnit:
    """The unit that builds `program`.

    Raises:
        InputError: there is no such program.
    """
    try:
        return PROGRAMS[program]
    except KeyError:
        raise InputError(f"no program is called {program!r}", hint="programs: " + ", ".join(sorted(PROGRAMS))) from None


def unit_named(name: str) -> BuildUnit:
    """The unit of that name, which must be one of `UNITS`."""
    return next(unit for unit in UNITS if unit.name == name)


def check_version(project: str, version: str) -> str:
    """The version without a leading `v`.

    Raises:
        InputError: no such project.
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
    """Major and minor number."""
    major, minor, _ = version.split(".", 2)
    return int(major), int(minor)


def reports_version(program: str) -> bool:
    """Whether the program tells its release when asked."""
    return program not in PROGRAMS[program].versionless


def version_args(program: str) -> tuple[str, ...]:
    """The arguments that make the program tell its version."""
    return PROGRAMS[program].version_args.get(program, ("--version",))
