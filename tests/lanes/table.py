"""The table of test lanes: what each runs, how long it takes, and for which changed files it runs in `.ci/run`.

`make test` runs the lane `test`. Each other lane has a command `make test-NAME`. A changed table makes all lanes run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

TABLE: Final = "tests/lanes/table.py"
E2E: Final = "tests/e2e"
PYTEST: Final = ("python", "-m", "pytest", "--tb=short")
BY_PLATFORM: Final = ("-v", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
"""Options for three workers with a platform each: most tests wait."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a lane. `python` is the interpreter of the virtual environment."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the user may override."""
    niceness: int = 0


_PROGRAMS: Final = Step("programs", ("python", "scripts/programs.py"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Steps that one command runs."""

    name: str
    about: str
    tracks: tuple[tuple[Step, ...], ...]
    """Tracks run at the same time, the steps of a track one after the other."""
    files: tuple[str, ...] = ()
    """End-to-end tests that only this lane runs: files or folders in `tests/e2e`."""
    minutes: tuple[int, int]
    """Minutes on two idle cores of the reference's speed (tests/support/machine.py): with all programs built, and
    without those that only this lane uses."""
    folders: tuple[str, ...] = ()
    """Beginnings of paths: continuous integration runs the lane if a changed file has one of them."""
    prepare: tuple[Step, ...] = (_PROGRAMS,)
    """Steps before all others, which need them: the first failure ends the lane."""
    in_all: bool = True
    """Whether `make test-all` runs the lane; the others are parts of `test`."""

    def is_changed_by(self, changed: Iterable[str]) -> bool:
        """Return whether one of these files makes continuous integration run the lane."""
        return any(path.startswith((TABLE, *self.files, *self.folders)) for path in changed)


def _end_to_end(name: str, about: str, *files: str, minutes: tuple[int, int], folders: tuple[str, ...]) -> Lane:
    """Return a lane of end-to-end tests that share one platform."""
    paths = tuple(f"{E2E}/{file}" for file in files)
    step = Step(name, (*PYTEST, "-v", *paths))
    return Lane(name=name, about=about, tracks=((step,),), files=paths, minutes=minutes, folders=folders)


_MODES = (
    "vkgateway/scheduler/backends/",
    f"{E2E}/foreign_pool.py",
    f"{E2E}/controllers.py",
)
_CHART = (
    "deploy/chart/",
    "deploy/image/",
    "deploy/rbac/",
    "scripts/image.py",
    "vkgateway/planes/drivers/kubernetes/",
    f"{E2E}/chart.py",
)

_SEPARATE: Final = (
    _end_to_end(
        "clusters",
        "one gateway with several compute clusters, and several gateways with one",
        "test_clusters.py",
        "test_shared_cluster.py",
        minutes=(2, 3),
        folders=(
            "vkgateway/clusters/",
            "vkgateway/kinds/",
            "vkgateway/kube/",
            "vkgateway/scheduler/backends/",
            "vkgateway/scheduler/service/",
            "vkgateway/tenants/",
        ),
    ),
    _end_to_end(
        "tools",
        "the kubectl plugin, usage and budgets, what-if, and installations from wheels",
        "test_plugin.py",
        "test_usage.py",
        "test_whatif.py",
        "test_wheels.py",
        minutes=(3, 4),
        folders=(
            "pyproject.toml",
            "scripts/wheels.py",
            "vkgateway/scheduler/core/whatif/",
            "vkgateway/cli/",
            "vkgateway/tenants/usage/",
            "vkgateway_platform/",
        ),
    ),
    _end_to_end(
        "datastore",
        "a tenant that fills the datastore: quota, and space that is freed again",
        "controlplane/test_datastore_quota.py",
        minutes=(2, 3),
        folders=("vkgateway/planes/etcd/",),
    ),
    _end_to_end(
        "conformance",
        "a subset of Kubernetes' conformance tests in a tenant",
        "test_conformance.py",
        minutes=(3, 8),
        folders=(
            "vkgateway_platform/conformance/",
            "vkgateway/planes/",
            "vkgateway/nodes/",
            "vkgateway/kinds/",
            "vkgateway/scheduler/service/",
        ),
    ),
    _end_to_end(
        "virtual-kubelet",
        "virtual-kubelet's end-to-end suite against a real and a hollow virtual node",
        "test_virtual_kubelet.py",
        minutes=(3, 6),
        folders=("vkgateway/nodes/", f"{E2E}/virtualkubelet.py"),
    ),
    _end_to_end(
        "kueue",
        "pools that the real Kueue schedules",
        "test_kueue.py",
        "test_kubelet_outage.py",
        minutes=(7, 11),
        folders=(*_MODES, "operators/kueue.py"),
    ),
    _end_to_end(
        "volcano",
        "pools that the real Volcano schedules",
        "test_volcano.py",
        minutes=(5, 12),
        folders=(*_MODES, "deploy/volcano/"),
    ),
    _end_to_end(
        "external",
        "pools of a second kube-scheduler and of Koordinator",
        "test_external.py",
        minutes=(5, 12),
        folders=_MODES,
    ),
    _end_to_end(
        "monitoring",
        "alerts fired by real faults, dashboards and scraping, with the real Prometheus",
        "test_alerts.py",
        "test_monitoring.py",
        "test_scrape_tenant.py",
        minutes=(6, 8),
        folders=(
            "deploy/monitoring/",
            "tests/support/monitoring.py",
            f"{E2E}/prometheus.py",
            f"{E2E}/faulty_gateway.py",
        ),
    ),
    _end_to_end(
        "chart",
        "the installed chart: upgrades, leader and standby, uninstallation",
        "release",
        minutes=(5, 8),
        folders=_CHART,
    ),
    _end_to_end(
        "docs",
        "the commands of the how-tos, word for word",
        "docs/test_how_tos.py",
        minutes=(4, 4),
        folders=("docs/how-to/", "vkgateway/cli/", "vkgateway_platform/cli/", f"{E2E}/pages.py"),
    ),
    _end_to_end(
        "operators",
        "every operator page, word for word, and gangs of real controllers",
        "test_operators.py",
        "test_gang_integrations.py",
        minutes=(30, 50),
        folders=("operators/", "docs/operators/", "examples/operators/", "vkgateway/scheduler/gangs/"),
    ),
)


def _without(lanes: Iterable[Lane]) -> tuple[str, ...]:
    return (E2E, *(f"--ignore={file}" for lane in lanes for file in lane.files))


CORE_FILES: Final = _without(_SEPARATE)
"""Arguments of pytest for the end-to-end tests that belong to no lane of their own."""
PORTABLE_FILES: Final = _without(lane for lane in _SEPARATE if lane.name in ("operators", "virtual-kubelet"))
"""Arguments of pytest for the end-to-end tests that run with other drivers and releases, too."""


def _stories(number: int) -> Step:
    return Step("stories", ("python", "-m", "tests.property.deep"), {"VKGATEWAY_STORIES": str(number)})


def _docs(builder: str, folder: str) -> Step:
    # Warnings are errors: broken links and anchors, and pages without an index entry.
    line = ("python", "-m", "sphinx", "-b", builder, "-E", "-q", "-n", "-W", "--keep-going", "docs", folder)
    return Step("docs", line)


LINT: Final = (
    Step("lint", ("ruff", "check", "-q", ".")),
    Step("format", ("ruff", "format", "--check", "-q", ".")),
    Step("types", ("mypy",)),
    Step("imports", ("lint-imports",)),
    # Reads and resolves all pages, and writes none.
    _docs("dummy", "build/docs-check"),
)
UNIT: Final = Step("unit", (*PYTEST, "-q", "-n", "3", "--dist", "worksteal", "tests/unit"))
PROPERTY: Final = (
    Step("property", (*PYTEST, "-q", "-n", "2", "--dist", "worksteal", "tests/property")),
    _stories(1000),
)
RENDERING: Final = Step("rendering", (*PYTEST, "-q", "tests/chart"))
_CORE: Final = Step("e2e", (*PYTEST, *BY_PLATFORM, *CORE_FILES))


def _part(name: str, about: str, *steps: Step, minutes: int) -> Lane:
    return Lane(name=name, about=about, tracks=(steps,), minutes=(minutes, minutes), prepare=(), in_all=False)


LANES: Final = (
    Lane(
        name="test",
        about="lint, unit, property and rendering, beside the end-to-end tests of the embedded platform",
        tracks=((_CORE,), tuple(replace(step, niceness=5) for step in (*LINT, UNIT, *PROPERTY, RENDERING))),
        minutes=(8, 15),
    ),
    _part("lint", "ruff, mypy --strict, import-linter, and the links of the documentation", *LINT, minutes=2),
    Lane(
        name="site",
        about="the documentation site in build/docs, with its links and anchors",
        tracks=((_docs("html", "build/docs"),),),
        minutes=(1, 1),
        folders=("docs/",),
        prepare=(),
    ),
    _part("unit", "unit tests", UNIT, minutes=2),
    _part("property", "property tests, and the arbiter's invariants in 1,000 random stories", *PROPERTY, minutes=2),
    _part("rendering", "the objects that Helm renders from the chart", RENDERING, minutes=1),
    Lane(
        name="e2e",
        about="end-to-end tests of the embedded platform",
        tracks=((_CORE,),),
        minutes=(6, 13),
        in_all=False,
    ),
    Lane(
        name="ui",
        about="the page in a real browser; pictures in build/ui",
        tracks=(
            (
                Step("page of a platform", (*PYTEST, "-q", "tests/ui/platform")),
                Step(
                    "views",
                    (
                        "scripts/own_network.sh",
                        *(*PYTEST, "-q", "-n", "2", "--dist", "worksteal"),
                        *("--ignore=tests/ui/platform", "tests/ui"),
                    ),
                ),
            ),
        ),
        prepare=(_PROGRAMS, Step("browser", ("scripts/ui_setup.sh",))),
        minutes=(5, 7),
        folders=("vkgateway/page/", "tests/ui/", "requirements-ui.lock", "scripts/ui_setup.sh"),
    ),
    Lane(
        name="deep",
        about="10,000 random stories (VKGATEWAY_STORIES), 1,000 of each pool mode, 200 examples of each property",
        tracks=(
            (
                Step("property", PROPERTY[0].argv, {"VKGATEWAY_CASES": "1000", "VKGATEWAY_EXAMPLES": "200"}),
                _stories(10_000),
            ),
        ),
        minutes=(6, 6),
        folders=(
            "vkgateway/scheduler/",
            "tests/property/",
            "tests/unit/arbiter/",
        ),
        prepare=(),
    ),
    *_SEPARATE,
    Lane(
        name="kubernetes",
        about="the end-to-end tests with gateway, etcd and control planes as pods, installed with the chart",
        tracks=(
            (Step("kubernetes", (*PYTEST, *BY_PLATFORM, *PORTABLE_FILES), {"VKGATEWAY_TEST_DRIVER": "kubernetes"}),),
        ),
        minutes=(20, 25),
        folders=_CHART,
    ),
    Lane(
        name="matrix",
        about="the end-to-end tests with older tenants and older compute clusters",
        tracks=((Step("matrix", ("python", "-m", "scripts.matrix")),),),
        minutes=(60, 90),
    ),
)


BESIDES_TEST: Final = tuple(lane for lane in LANES if lane.in_all and lane.name != "test")
"""The lanes that continuous integration selects by changed files."""


def lanes_for(changed: Iterable[str]) -> list[Lane]:
    """Return the lanes that these changed files require besides `test`, in the order of the table."""
    paths = list(changed)
    return [lane for lane in BESIDES_TEST if lane.is_changed_by(paths)]
