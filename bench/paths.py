"""`python -m bench paths`: files and functions of the gateway through which one change passes.

The real reconcilers run over the fake API servers of the unit tests, and `sys.setprofile` records their calls. The
counts don't depend on the machine, on time, or on the Python release:

- Only two tasks count: the watch whose event starts the path, and the worker that handles it, which is the one with the
  most calls. From the worker's first call on, it alone counts. Heartbeats and scheduling cycles, which run by a clock,
  are other tasks. Callbacks of sockets, whose number depends on how bytes arrive, are no task. So a path is one
  sequence of calls in one thread.
- A path ends when its result exists, which each call checks. Later calls don't count.
- A coroutine or generator counts when it first runs, not each time that it continues.
- Comprehensions don't count, because Python 3.12 and later inline them.
- Before a path the cluster is quiet, and a first pod or tenant has loaded all modules. Caches of functions are empty.
- The garbage collector is off: it closes generators of previous paths, which shows as calls.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.table import Table

import vkgateway
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from tests.support.waiting import let_pass, wait_until
from tests.unit.arbiter.simulated_cluster import LOW, Cluster, make_cluster, make_gang, make_quota
from tests.unit.gateway.conftest import add_compute_cluster
from tests.unit.gateway.test_tenant_controller import World as Management
from tests.unit.gateway.test_tenant_controller import pool as make_pool
from tests.unit.sync.world import NODE, TENANT, World, start_world
from vkgateway.api.names import compute_namespace
from vkgateway.kube.resources import NAMESPACES, PODS
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.serve import logs
from vkgateway.settings.config import Logging

PAGE: Final = Path(__file__).parent.parent / "docs" / "contributing" / "architecture.md"
COMMAND: Final = "python -m bench paths --write"
TOLERANCE: Final = 1.2
"""Factor by which a figure may exceed the page's."""
_BEGIN, _END = "<!-- paths: begin -->\n", "<!-- paths: end -->\n"
_PACKAGE: Final = f"{Path(vkgateway.__file__).parent}/"
_UNCOUNTED: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<module>"})
_RESUMABLE: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class PathLength(msgspec.Struct, frozen=True):
    """Numbers of a path below `vkgateway/`: distinct files, those without `kube/`, distinct functions, and moves.

    A move is a call in another file than the call before.
    """

    path: str
    files: int
    files_without_kube: int
    functions: int
    moves: int


COLUMNS: Final = ("path", "files", "without `kube/`", "functions", "moves")


class _Recorder:
    """Recorder of the calls of one path. Without `watch`, the calls outside of tasks count."""

    def __init__(self, *, watch: str = "", worker: str = "", is_done: Callable[[], bool] = lambda: False) -> None:
        self.is_complete = False
        self._calls: list[tuple[str, CodeType]] = []
        """Calls with the names of their tasks."""
        self._watch = watch
        self._worker = re.compile(worker)
        self._is_done = is_done
        self._started: set[FrameType] = set()
        """Coroutines and generators that ran. The references prevent another frame with the same identity."""

    def handle_profile_event(self, frame: FrameType, event: str, _argument: object) -> None:
        """Record a call, as the function of `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or self.is_complete or not code.co_filename.startswith(_PACKAGE):
            return
        self.is_complete = self._is_done()
        if self.is_complete or code.co_name in _UNCOUNTED:
            return
        task = _task_name()
        if task != self._watch and not self._worker.fullmatch(task):
            return
        if code.co_flags & _RESUMABLE:
            if frame in self._started:
                return
            self._started.add(frame)
        self._calls.append((task, code))

    def _path(self) -> list[CodeType]:
        """Return the calls of the watch until the worker begins, and those of the worker."""
        counts = Counter(task for task, _ in self._calls if task != self._watch)
        if not counts:
            return [code for _, code in self._calls]
        worker = counts.most_common(1)[0][0]
        begin = next(index for index, (task, _) in enumerate(self._calls) if task == worker)
        begun = [code for task, code in self._calls[:begin] if task == self._watch]
        return begun + [code for task, code in self._calls if task == worker]

    def release_frames(self) -> None:
        """Release what the recorded calls refer to."""
        self._started.clear()

    def length(self, path: str) -> PathLength:
        """Return the numbers of the recorded calls."""
        codes = self._path()
        calls = [code.co_filename.removeprefix(_PACKAGE) for code in codes]
        return PathLength(
            path=path,
            files=len(set(calls)),
            files_without_kube=len({file for file in calls if not file.startswith("kube/")}),
            functions=len({(code.co_filename, code.co_firstlineno, code.co_name) for code in codes}),
            moves=sum(file != before for before, file in pairwise(calls)),
        )


def _task_name() -> str:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop
        return ""
    return task.get_name() if task is not None else ""


@contextmanager
def _record_calls(recorder: _Recorder) -> Iterator[None]:
    """Record the calls of this thread, with empty caches of functions and without garbage collection."""
    for name in [name for name in sys.modules if name.startswith("vkgateway.")]:
        for value in list(vars(sys.modules[name]).values()):
            if callable(clear := getattr(value, "cache_clear", None)):
                clear()
    gc.collect()
    gc.disable()
    profile = sys.getprofile()
    sys.setprofile(recorder.handle_profile_event)
    try:
        yield
    finally:
        sys.setprofile(profile)
        gc.enable()
        recorder.release_frames()


def measure_paths() -> list[PathLength]:
    """Measure all paths, in the order of the table. Takes about two seconds. Not for use in an event loop."""
    return [*asyncio.run(_measure_pods()), *_measure_arbiter(), asyncio.run(_measure_tenant())]


async def _measure_pods() -> list[PathLength]:
    """Measure a pod in a used namespace in both directions, then the first pod of another namespace."""
    async with start_world() as world, world.run_gateway():
        await _forward(world, "first", "default")
        await _mirror(world, "first")
        forward = await _forward(world, "second", "default")
        mirror = await _mirror(world, "second")
        world.tenant_server.store.create(NAMESPACES, {"metadata": {"name": "other"}})
        first = await _forward(world, "third", "other")
    return [
        forward.length("forward a CPU pod"),
        mirror.length("mirror its status"),
        first.length("forward the first pod of a namespace"),
    ]


async def _forward(world: World, name: str, namespace: str) -> _Recorder:
    """Create a CPU pod, and record from its binding until its compute pod is created."""
    store, find = world.tenant_server.store, world.compute_server.store.find
    spec = {"containers": [{"name": "main", "image": "busybox"}], "enableServiceLinks": False}
    store.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace)
    await world.wait_settled()
    is_created = partial(find, PODS, name, compute_namespace(TENANT, namespace))
    recorder = _Recorder(watch=f"tenant/{TENANT}/watch", worker=r"sync-\d+", is_done=lambda: is_created() is not None)
    with _record_calls(recorder):
        store.bind(name, namespace, NODE)
        await wait_until(is_created)
    await world.wait_settled()
    return recorder


async def _mirror(world: World, name: str) -> _Recorder:
    """Bind a compute pod, start it, and record from its start until its tenant pod is Running."""
    world.bind_compute_pod(name)
    await world.wait_settled()
    recorder = _Recorder(
        watch="compute/local/watch-pods", worker=r"sync-\d+", is_done=lambda: world.pod_phase(name) == "Running"
    )
    with _record_calls(recorder):
        world.start_compute_pod(name)
        await wait_until(lambda: world.pod_phase(name) == "Running")
    await world.wait_settled()
    return recorder


def _measure_arbiter() -> list[PathLength]:
    """Measure decisions about a gang of two pods: on idle nodes, and on nodes that a borrowing gang occupies."""
    empty = make_cluster(2, make_quota("a", 16))
    empty.add(make_gang("gang", "a", [8, 8]))
    start, decisions = _decide(empty)
    assert decisions.admits
    borrowed = make_cluster(2, make_quota("a", 16), make_quota("b"))
    borrowed.add(make_gang("borrowing", "b", [8, 8], band=LOW))
    borrowed.cycle()
    borrowed.add(make_gang("gang", "a", [8, 8]))
    reclaim, decisions = _decide(borrowed)
    assert decisions.evicts
    return [
        start.length("start a gang in an empty pool"),
        reclaim.length("reclaim by evicting a gang"),
    ]


def _decide(cluster: Cluster) -> tuple[_Recorder, Decisions]:
    """Record one cycle without the snapshot before and the checks after it."""
    snapshot, recorder = cluster.snapshot(), _Recorder()
    with _record_calls(recorder):
        decisions = decide(snapshot, cluster.now, cluster.cache)
    return recorder, decisions


async def _measure_tenant() -> PathLength:
    """Measure a tenant's creation until it is Ready, after that of another tenant."""
    async with _run_management() as world:
        await _create_tenant(world, "first")
        return (await _create_tenant(world, "second")).length("create a tenant")


@asynccontextmanager
async def _run_management() -> AsyncIterator[Management]:
    async with FakeApiServer(rights=Rights.of_both()) as server, server.client("management") as client:
        add_compute_cluster(server)
        world = Management(server, client)
        async with world.gateway():
            yield world


async def _create_tenant(world: Management, name: str) -> _Recorder:
    recorder = _Recorder(watch="tenants/watch", worker=f"tenant/{name}", is_done=lambda: world.phase(name) == "Ready")
    with _record_calls(recorder):
        world.create(name, pools=[make_pool(8)])
        await wait_until(lambda: world.phase(name) == "Ready")
    version = -1
    while version != world.server.store.version or world.begun != world.ended:
        version = world.server.store.version
        await let_pass(0.05)
    return recorder


def render_markdown(lengths: Sequence[PathLength]) -> str:
    """Return the lengths as a Markdown table."""
    rows = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1)), *map(msgspec.structs.astuple, lengths)]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def read_lengths(page: str) -> list[PathLength]:
    """Return the lengths in the page's table. Raises click.ClickException if the page has no markers."""
    table = _split_page(page)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    return [PathLength(path, *map(int, figures)) for path, *figures in rows[2:]]


def find_longer_paths(lengths: Sequence[PathLength], published: Sequence[PathLength]) -> list[str]:
    """Return a line for each unpublished path, and for each figure more than a fifth above the published one."""
    known = {length.path: length for length in published}
    lines = []
    for length in lengths:
        if (before := known.get(length.path)) is None:
            lines.append(f"{length.path}: not in {PAGE.name}")
            continue
        for field in PathLength.__struct_fields__[1:]:
            now, then = getattr(length, field), getattr(before, field)
            if now > TOLERANCE * then:
                lines.append(f"{length.path}: {now} {field.replace('_', ' ')}, in {PAGE.name} {then}")
    return lines


def replace_table(page: str, lengths: Sequence[PathLength]) -> str:
    """Return the page with the table of these lengths. Raises click.ClickException if the page has no markers."""
    before, _, after = _split_page(page)
    return f"{before}{_BEGIN}\n{render_markdown(lengths)}\n{_END}{after}"


def _split_page(page: str) -> tuple[str, str, str]:
    before, begin, rest = page.partition(_BEGIN)
    table, end, after = rest.partition(_END)
    if not (begin and end):
        raise click.ClickException(f"{PAGE} has no lines {_BEGIN.strip()!r} and {_END.strip()!r}. Add them.")
    return before, table, after


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--write", is_flag=True, help="Also write the table in docs/contributing/architecture.md.")
def main(output: str, write: bool) -> None:
    """Count the files and functions of the gateway through which a pod, a gang and a tenant pass."""
    logs.configure_logging(Logging(level="warning"))
    lengths = measure_paths()
    if output == "json":
        click.echo(json.dumps(msgspec.to_builtins(lengths), indent=2))
    else:
        table = Table()
        for index, column in enumerate(COLUMNS):
            table.add_column(column.replace("`", ""), justify="right" if index else "left")
        for length in lengths:
            table.add_row(*map(str, msgspec.structs.astuple(length)))
        Console().print(table)
    if write:
        PAGE.write_text(replace_table(PAGE.read_text(), lengths))
