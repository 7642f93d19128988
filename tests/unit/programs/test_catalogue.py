"""The catalogue: units, versions, the go.mod and flags of a build, errors from go's output."""

import re
from pathlib import Path

import pytest

from tests.fakes.clock import FakeClock
from vkgateway.api.errors import InputError
from vkgateway_platform.binaries import errors
from vkgateway_platform.binaries.cache import BUILT_PREFIX, Cache
from vkgateway_platform.binaries.catalogue import (
    CORE_PROGRAMS,
    DEFAULT_VERSIONS,
    PROGRAMS,
    STANDARD_PROGRAMS,
    UNITS,
    BuildUnit,
    check_version,
    unit_of,
)
from vkgateway_platform.binaries.go_build import (
    BuildProgress,
    build_commands,
    file_name,
    format_elapsed,
    link_flags,
    listing_commands,
)
from vkgateway_platform.binaries.go_mod import LibraryVersions, modules_in_graph, parse_requirements, render_go_mod
from vkgateway_platform.binaries.release import NoReleaseError, parse_checksum

UPSTREAM = """\
module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

require (
	github.com/blang/semver/v4 v4.0.0
	k8s.io/api v0.0.0
	k8s.io/apimachinery v0.0.0
	k8s.io/kube-openapi v0.0.0-20260317180543-43fb72c5454a
	k8s.io/unrelated v0.0.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/apimachinery => ./staging/src/k8s.io/apimachinery
	k8s.io/sample-controller => ./staging/src/k8s.io/sample-controller
)
"""


def test_every_program_belongs_to_one_unit_with_a_default_version() -> None:
    assert sum(len(unit.packages) for unit in UNITS) == len(PROGRAMS)
    assert {unit.project for unit in UNITS} == set(DEFAULT_VERSIONS)
    assert set(CORE_PROGRAMS) < set(PROGRAMS)
    assert "kubelet" not in CORE_PROGRAMS, "a real node's programs are fetched only when asked for"


def test_control_plane_is_built_in_one_run() -> None:
    names = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    assert len({unit_of(name).name for name in names}) == 1
    assert unit_of("kubelet") is unit_of("kube-proxy") is not unit_of("kubectl")


def test_conformance_suite_is_fetched_by_name_only() -> None:
    suite = unit_of("e2e.test")
    assert set(suite.packages).isdisjoint(STANDARD_PROGRAMS)
    assert set(STANDARD_PROGRAMS) | set(suite.packages) == set(PROGRAMS)


def test_test_package_is_built_after_the_programs_with_the_same_flags(tmp_path: Path) -> None:
    suite = unit_of("e2e.test")
    plain, tests = build_commands(suite, "1.36.3", output=tmp_path)
    assert plain[:1] == ["build"]
    assert tests[:3] == ["test", "-c", "-vet=off"]
    assert tests[-1] == "k8s.io/kubernetes/test/e2e"
    assert "k8s.io/kubernetes/test/e2e" not in plain
    assert [word for word in plain if word.startswith("-")] == [word for word in tests[3:] if word.startswith("-")]
    assert [command[0] for command in build_commands(unit_of("etcd"), "3.6.8", output=tmp_path)] == ["build"]


def test_unknown_program_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="'kubeadm'") as caught:
        unit_of("kubeadm")
    assert "kube-apiserver" in caught.value.hint


@pytest.mark.parametrize(
    ("project", "version", "expected"),
    [("kubernetes", "v1.36.3", "1.36.3"), ("kubernetes", "1.30.0", "1.30.0"), ("etcd", "3.7.0-rc.1", "3.7.0-rc.1")],
)
def test_valid_versions_are_accepted(project: str, version: str, expected: str) -> None:
    assert check_version(project, version) == expected


@pytest.mark.parametrize("version", ["", "1.36", "latest", "1.29.6", "1.36.3; rm", "1.36.3/../x", "0.9.0"])
def test_invalid_versions_are_refused(version: str) -> None:
    with pytest.raises(errors.UnknownVersionError) as caught:
        check_version("kubernetes", version)
    assert DEFAULT_VERSIONS["kubernetes"] in caught.value.hint
    assert caught.value.exit_code == 2


def test_modules_in_upstreams_tree_are_replaced_by_published_versions() -> None:
    text = render_go_mod(unit_of("kubectl"), "1.36.3", go_version="1.99", upstream=UPSTREAM)
    assert text.splitlines() == [
        "module build",
        "go 1.26.0",
        "godebug default=go1.26",
        "require k8s.io/kubernetes v1.36.3",
        "replace k8s.io/api => k8s.io/api v0.36.3",
        "replace k8s.io/apimachinery => k8s.io/apimachinery v0.36.3",
        "replace k8s.io/sample-controller => k8s.io/sample-controller v0.36.3",
        "exclude k8s.io/api v0.36.3",
        "exclude k8s.io/apimachinery v0.36.3",
        "exclude k8s.io/sample-controller v0.36.3",
    ]


def test_modules_of_other_projects_are_required() -> None:
    text = render_go_mod(unit_of("etcd"), "3.6.8", go_version="1.24.13", upstream="ignored")
    assert text.splitlines()[1:] == ["go 1.24.13"] + [
        f"require go.etcd.io/etcd/{module}/v3 v3.6.8" for module in ("server", "etcdctl", "etcdutl")
    ]


def test_unit_keeps_its_replacements() -> None:
    rival = BuildUnit(
        name="rival",
        project="rival",
        packages={"rival": "example.org/rival/cmd"},
        modules=("example.org/rival",),
        replacements={"example.org/apis": "1.14.0"},
    )
    upstream = """\
module example.org/rival

replace example.org/old => example.org/new v1.2.3

replace (
	k8s.io/api => k8s.io/api v0.34.1
	// kept in this tree
	example.org/apis => ./staging/src/example.org/apis
)
"""
    assert render_go_mod(rival, "1.14.1", go_version="1.24.0", upstream=upstream).splitlines() == [
        "module build",
        "go 1.24.0",
        "require example.org/rival v1.14.1",
        "replace example.org/old => example.org/new v1.2.3",
        "replace k8s.io/api => k8s.io/api v0.34.1",
        "replace example.org/apis => example.org/apis v1.14.0",
    ]


def test_requirements_are_parsed_from_blocks_and_single_lines() -> None:
    text = """\
module example.org/own

require example.org/single v1.0.0 // with a remark

require (
	// a remark: v9.9.9
	example.org/direct v1.2.3
	example.org/other v0.0.0-20260101000000-abcdefabcdef // indirect
)

exclude (
	example.org/excluded v1.0.0
)

replace example.org/replaced => example.org/by v2.0.0
"""
    assert parse_requirements(text) == {
        "example.org/single": "v1.0.0",
        "example.org/direct": "v1.2.3",
        "example.org/other": "v0.0.0-20260101000000-abcdefabcdef",
    }


def test_module_graph_excludes_go_itself() -> None:
    graph = ["build a@v1.0.0", "a@v1.0.0 b@v1.2.0", "a@v1.0.0 go@1.26.0", "go: downloading b v1.2.0"]
    assert modules_in_graph(graph) == {("a", "v1.0.0"), ("b", "v1.2.0")}


def test_libraries_have_the_versions_of_another_project() -> None:
    own = """\
module sigs.k8s.io/kwok

require (
	example.org/mine v1.0.0
	github.com/blang/semver/v4 v4.1.0
	k8s.io/api v0.36.1
)
"""
    seen = {
        ("sigs.k8s.io/kwok", "v0.8.0"),
        ("example.org/mine", "v1.0.0"),
        ("example.org/mine", "v0.9.0"),
        ("github.com/blang/semver/v4", "v4.1.0"),
        ("github.com/blang/semver/v4", "v4.0.0"),
        ("k8s.io/api", "v0.36.1"),
        ("k8s.io/api", "v0.36.3"),
    }
    text = render_go_mod(
        unit_of("kwok"),
        "0.8.0",
        go_version="1.26.0",
        upstream=own,
        libraries=LibraryVersions.from_go_mod(UPSTREAM, "1.36.3"),
        seen=seen,
    )
    lines = text.splitlines()
    assert lines[:3] == ["module build", "go 1.26.0", "require sigs.k8s.io/kwok v0.8.0"]
    assert "require example.org/mine v1.0.0" in lines, "what the other project does not know stays as it is"
    assert "require github.com/blang/semver/v4 v4.0.0" in lines
    assert "require k8s.io/api v0.0.0" in lines
    assert "replace k8s.io/api => k8s.io/api v0.36.3" in lines
    excluded = [line.split()[1:] for line in lines if line.startswith("exclude ")]
    assert ["github.com/blang/semver/v4", "v4.1.0"] in excluded
    assert ["k8s.io/api", "v0.36.1"] in excluded
    assert excluded.count(["k8s.io/api", "v0.36.3"]) == 1, "the published modules require each other so"
    assert {module for module, _ in excluded}.isdisjoint({"example.org/mine", "sigs.k8s.io/kwok"})


def test_units_follow_existing_units() -> None:
    names = {unit.name for unit in UNITS}
    after = {unit.name: unit.after for unit in UNITS if unit.after}
    assert after == dict.fromkeys(("kubernetes-node", "kwok", "coredns", "conformance"), "kubernetes")
    assert set(after.values()) <= names - set(after), "no unit waits for one that waits itself"
    assert {unit.name for unit in UNITS if unit.shares_versions} == {"kwok", "coredns"}


def test_listing_all_packages_downloads_the_modules() -> None:
    [listing] = listing_commands(unit_of("etcd"))
    assert listing[:2] == ["list", "-deps"]
    assert set(unit_of("etcd").packages.values()) < set(listing)
    plain, tests = listing_commands(unit_of("e2e.test"))
    assert ("-test" in plain, "-test" in tests) == (False, True)
    assert tests[-1] == "k8s.io/kubernetes/test/e2e"


def test_linker_flags_set_the_version() -> None:
    flags = link_flags(unit_of("kube-apiserver"), "1.36.3")
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.3" in flags
    assert "-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36" in flags
    assert link_flags(unit_of("coredns"), "1.15.0") == "-s -w", "CoreDNS holds its version as a constant"


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ("go.etcd.io/etcd/server/v3", "server"),
        ("k8s.io/kubernetes/cmd/kubectl", "kubectl"),
        ("github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", "containerd-shim-runc-v2"),
    ],
)
def test_file_name_of_go_build(package: str, expected: str) -> None:
    assert file_name(package) == expected


def test_file_name_of_go_test() -> None:
    assert file_name("k8s.io/kubernetes/test/e2e", test=True) == "e2e.test"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("link: write /x: no space left on device", errors.DiskFullError),
        ("go: x@v1: reading https://p/x/@v/v1.info: 404 Not Found", errors.UnknownVersionError),
        ("go: x@v1: invalid version: unknown revision v1", errors.UnknownVersionError),
        ('go: x@v1: Get "https://p": dial tcp: lookup p: no such host', errors.NoNetworkError),
        ('go: x@v1: Get "https://p": net/http: TLS handshake timeout', errors.NoNetworkError),
        ("go: x@v1: module lookup disabled by GOPROXY=off", errors.NoNetworkError),
        ("verifying x@v1: checksum mismatch", errors.ChecksumError),
        ("x.go:1: undefined: y", errors.BuildError),
    ],
)
def test_error_of_go_becomes_one_sentence(line: str, kind: type[Exception], tmp_path: Path) -> None:
    lines = ["go: downloading a v1.0.0", line]
    found = errors.error_from_output(lines, what="kubernetes 1.36.3", folder=tmp_path, log=Path("/logs/build.log"))
    assert type(found) is kind
    assert found.hint
    assert "\n" not in str(found)
    assert "kubernetes 1.36.3" in str(found) or kind is errors.DiskFullError


def test_failure_without_output_names_the_log() -> None:
    found = errors.error_from_output([], what="kwok 0.8.0", folder=Path("/"), log=Path("/logs/kwok.log"))
    assert str(found) == "building kwok 0.8.0 failed: no output"
    assert "/logs/kwok.log" in found.hint


def test_checksums_are_parsed_in_both_forms() -> None:
    digest = "AB" * 32
    assert parse_checksum(f"{digest}\n", name="kubectl") == digest.lower()
    table = f"{'0' * 64}  other.tar.gz\n{digest}  *release/etcd.tar.gz\n"
    assert parse_checksum(table, name="etcd.tar.gz") == digest.lower()
    for text in ("", "<html>not found</html>", f"{'0' * 64}  other.tar.gz"):
        with pytest.raises(NoReleaseError):
            parse_checksum(text, name="etcd.tar.gz")


def test_progress_reports_work_and_duration() -> None:
    clock = FakeClock()
    reports: list[str] = []
    progress = BuildProgress("building etcd 3.6.8", report=reports.append, every=10.0, clock=clock)
    progress.count_line("go: downloading go.uber.org/zap v1.27.0")
    clock.seconds = 7.4
    progress.report_state()
    progress.count_line("go.uber.org/zap")
    progress.count_line("# some/package: a warning of the compiler")
    clock.seconds = 65.0
    progress.report_state()
    assert reports == [
        "building etcd 3.6.8: modules downloaded: 1, 7 s",
        "building etcd 3.6.8: packages compiled: 1, 1 min 05 s",
    ]
    assert format_elapsed(600) == "10 min 00 s"


def test_program_built_from_another_main_package_is_rebuilt(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for name in ("coredns", "etcd"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        cache.install_program(tmp_path / name, name, "1.0.0", source=f"{BUILT_PREFIX} go1.26.8")
    assert cache.has_program("coredns", "1.0.0")
    for name in ("coredns", "etcd"):
        note = cache.program_path(name, "1.0.0").with_name(f".{name}.json")
        note.write_text(re.sub('"main":"[0-9a-f]*"', '"main":"other"', note.read_text()))
    assert not cache.has_program("coredns", "1.0.0")
    assert cache.has_program("etcd", "1.0.0"), "its source is no more than its version"


def test_official_release_has_no_main_digest(tmp_path: Path) -> None:
    (tmp_path / "coredns").write_text("#!/bin/sh\n")
    Cache(tmp_path).install_program(tmp_path / "coredns", "coredns", "1.0.0", source="official release")
    note = Cache(tmp_path).program_path("coredns", "1.0.0").with_name(".coredns.json")
    note.write_text(re.sub('"main":"[0-9a-f]*"', '"main":"other"', note.read_text()))
    assert Cache(tmp_path).has_program("coredns", "1.0.0")
