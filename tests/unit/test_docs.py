"""What README and docs point to is there."""

from __future__ import annotations

import ast
import itertools
import re
import runpy
import subprocess
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest

from bench.__main__ import BENCHMARKS
from operators.catalogue import KITS
from vkgateway.api.names import ADMISSION_GATE
from vkgateway.cli.main import cli
from vkgateway.kinds.pods.translation.conditions import ADMITTED_CONDITION, EVICTION_REASONS
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.gangs import INTEGRATIONS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")
UNDOCUMENTED = {"vkgateway.io/v", "vkgateway.io/objects"}
"""Not keys of objects that users or platform teams see."""
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
POINTER = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(\))?`|\b[Ss]ee `(\w+)`")
FIELDS = {"arbiter", "controlPlanes", "kubelet", "metadata", "spec", "status", "tenant", "variables"}
"""Objects, settings and variables of templates whose fields comments name."""
ELSEWHERE = {
    "GenericHttpResponseChecker",
    "IPNet",
    "csi",
    "metav1",
    "net",
    "os",
    "random",
    "re",
    "regexp",
    "resource",
    "ssl",
    "strconv",
}
FILES_AND_HOSTS = {"CLUSTER", "crt", "io", "j2", "json", "key", "local", "py", "test"}


def anchor(heading: str) -> str:
    """The name by which a heading is linked to, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(heading) for heading in HEADING.findall(page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, fragment in LINK.findall(page.read_text()):
        file = (page.parent / target) if target else page
        assert file.exists(), f"{target} does not exist"
        if fragment:
            assert fragment in anchors(file), f"{target or page.name} has no heading #{fragment}"


def test_the_readme_names_every_section() -> None:
    """Whether each page can be reached from its section is checked when the site is built."""
    readme = (ROOT / "README.md").read_text()
    assert [
        page.parent.name for page in ROOT.glob("docs/*/index.md") if f"docs/{page.parent.name}/" not in readme
    ] == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/decisions/0*.md")), ids=lambda page: page.name[:4])
def test_a_decision_has_its_date_and_alternatives(page: Path) -> None:
    """The index has its title, word for word."""
    text = page.read_text()
    title, date = text.splitlines()[:3:2]
    assert f"- [{title.removeprefix('# ')}]({page.name})\n" in page.with_name("index.md").read_text()
    assert re.fullmatch(r"\*\*Date\.\*\* 20\d\d-\d\d-\d\d", date)
    parts = re.findall(r"^\*\*([A-Z][a-z]+)\.\*\*", text, re.MULTILINE)
    assert [part for part in parts if part != "Consequences"] == ["Date", "Problem", "Decision", "Alternatives"]


def test_files_that_are_named_exist() -> None:
    named = re.compile(r"`((?:vkgateway|tests|scripts|deploy|tenant_templates|examples|\.ci)/[\w./-]+)`")
    missing = [
        f"{page.name}: {path}"
        for page in PAGES
        for path in named.findall(page.read_text())
        if not (ROOT / path).exists() and "NAME" not in path
    ]
    assert missing == []


def test_generated_reference_is_current() -> None:
    """`make reference` writes it."""
    reference = runpy.run_path(str(ROOT / "scripts" / "reference.py"))
    changed = [page.name for page in reference["pages"]() if reference["render_page"](text := page.read_text()) != text]
    assert changed == [], "run `make reference`"


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^|`)make ([a-z0-9-]*[a-z0-9])", page.read_text(), re.MULTILINE))
        named -= {f"bench-{name}" for name in BENCHMARKS} | {f"operator-{name}" for name in KITS} | {"operator"}
        assert named <= targets, f"{page.name} names {named - targets}"


def test_make_help_lists_every_target() -> None:
    """Those of a pattern (bench-%) have lines of their own."""
    help_text = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"^  make (\S+) +\S", help_text, re.MULTILINE)
    targets = set(re.findall(r"^([^\s:.$]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert sorted(listed) == sorted(target.replace("%", "NAME") for target in targets)


def reference(name: str) -> str:
    return (ROOT / "docs" / "reference" / f"{name}.md").read_text()


def test_every_pending_reason_and_gang_source_is_documented() -> None:
    reasons, sources = reference("pending-reasons"), reference("gang-sources")
    assert [code for code in PendingReason if f"| `{code}` |" not in reasons] == []
    assert [
        way.title for way in INTEGRATIONS if f"| {way.title} |" not in sources and f"| `{way.title}` |" not in sources
    ] == []
    assert [code for code in PendingReason if f"`{code}`" not in reference("events")] == []
    assert [reason for reason in EVICTION_REASONS if f"`{reason}`" not in reference("events")] == []
    assert ADMITTED_CONDITION in reference("conditions")


def test_every_command_is_documented() -> None:
    """A row such as `tenant create`, `list` has the commands of a group."""
    rows = re.findall(r"^\| (`.*?`) \|", reference("cli"), re.MULTILINE)
    named = {command for row in rows for command in re.findall(r"`([a-z-]+(?: [a-z-]+)?)`", row)}
    missing = []
    with click.Context(cli) as context:
        for name in cli.list_commands(context):
            command = cli.get_command(context, name)
            group = command.list_commands(context) if isinstance(command, click.Group) else []
            parts = [f"{name} {group[0]}", *group[1:]] if group else [name]
            missing += [part for part in parts if not {part, f"{name} {part.split()[-1]}", part.split()[-1]} & named]
    assert missing == []


def test_every_label_and_annotation_is_documented() -> None:
    page = reference("annotations")
    literals = re.compile(r"\"((?:[a-z]+\.)?vkgateway\.io/[a-z-]+)\"")
    composed = re.compile(r"\{RESERVED_PREFIX\}([a-z-]+)\"")
    texts = [file.read_text() for file in ROOT.glob("vkgateway*/**/*.py")]
    used = {key for text in texts for key in literals.findall(text)}
    used |= {f"vkgateway.io/{name}" for text in texts for name in composed.findall(text)}
    assert ADMISSION_GATE in used
    assert sorted(key for key in used - UNDOCUMENTED if f"`{key}" not in page) == []


def test_documented_events_exist() -> None:
    """Names with a prefix and a suffix, such as MandatorySecretNotFound, are put together from parts."""
    code = "".join(file.read_text() for file in ROOT.glob("vkgateway*/**/*.py"))
    reasons = re.findall(
        r"`([A-Z][A-Za-z]+)`", "".join(re.findall(r"^\| (`.*?) \|", reference("events"), re.MULTILINE))
    )
    assert len(reasons) > 30
    assert [name for name in reasons if f'"{name}"' not in code and not name.endswith("NotFound")] == []


def test_every_event_with_a_literal_reason_is_documented() -> None:
    page = reference("events") + reference("conditions")
    folders = [folder for folder in (ROOT / "vkgateway").iterdir() if folder.is_dir() and folder.name != "kube"]
    events = {reason for folder in folders for reason in event_reasons(folder)}
    assert "EvictionWithdrawn" in events
    assert sorted(reason for reason in events if f"`{reason}`" not in page) == []


def event_reasons(folder: Path) -> Iterator[str]:
    """Reasons that calls name literally; errors of API servers have reasons, too."""
    for file in folder.glob("**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and "errors." not in ast.unparse(node.func):
                for keyword in node.keywords:
                    if keyword.arg == "reason" and isinstance(keyword.value, ast.Constant) and keyword.value.value:
                        yield str(keyword.value.value)


def test_files_of_typical_changes_exist() -> None:
    """A file without a folder stands in a folder of the same row."""
    missing = []
    for row in (ROOT / "docs/contributing/where-to-change-what.md").read_text().splitlines():
        named = re.findall(r"`([\w./-]+(?:/|\.(?:py|yaml|md)))`", row)
        folders = [ROOT, ROOT / "vkgateway", *((ROOT / "vkgateway" / name) for name in named if "/" in name)]
        folders += [folder.parent for folder in folders] + [ROOT / "deploy/chart/vkgateway/templates"]
        missing += [name for name in named if not any((folder / name).exists() for folder in folders)]
    assert missing == []


def test_names_in_docstrings_and_comments_exist() -> None:
    """A dotted name in backticks is a module, or a member of a module or class of the project. So is one after see."""
    files = sorted(ROOT.glob("vkgateway*/**/*.py"))
    project = Definitions({file: ast.parse(file.read_text()) for file in files})
    missing = [
        f"{file.relative_to(ROOT)}: {name}"
        for file, tree in project.trees.items()
        for text in prose(file, tree)
        for name in map("".join, POINTER.findall(text))
        if not project.has_name(*name.split("."))
        and not {name.split(".")[0]} & (FIELDS | ELSEWHERE)
        and name.split(".")[-1] not in FILES_AND_HOSTS
    ]
    assert missing == []


def prose(file: Path, tree: ast.Module) -> Iterator[str]:
    with file.open("rb") as stream:
        yield from (token.string for token in tokenize.tokenize(stream.readline) if token.type == tokenize.COMMENT)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


class Definitions:
    """Modules and classes by the last part of their names."""

    def __init__(self, trees: dict[Path, ast.Module]) -> None:
        self.trees = trees
        self.modules: dict[str, list[tuple[str, set[str]]]] = defaultdict(list)
        self.classes: dict[str, list[tuple[list[str], set[str]]]] = defaultdict(list)
        for file, tree in trees.items():
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            self.modules[module.rpartition(".")[2]].append((f".{module}", set(defined(tree.body))))
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
                    self.classes[node.name].append((bases, {*defined(node.body), *attributes(node)}))

    def has_name(self, *parts: str) -> bool:
        if len(parts) == 1 and parts[0] not in self.modules:
            places = itertools.chain(*self.modules.values(), *self.classes.values())
            return parts[0] in self.classes or any(parts[0] in names for _, names in places)
        if parts[0] in self.classes:
            return self.has_member(parts[0], parts[1])
        return any(
            not rest or (rest[0] in names and (len(rest) == 1 or self.has_member(rest[0], rest[1])))
            for end in range(1, len(parts) + 1)
            for rest in [parts[end:]]
            for module, names in self.modules.get(parts[end - 1], ())
            if module.endswith(f".{'.'.join(parts[:end])}")
        )

    def has_member(self, name: str, member: str) -> bool:
        return any(
            member in members or any(self.has_member(base, member) for base in bases if base != name)
            for bases, members in self.classes.get(name, ())
        )


def defined(body: Iterable[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (name.asname or name.name for name in names)
            case ast.If(body=inner):
                yield from defined(inner)
            case _:
                yield from (node.id for node in ast.walk(statement) if isinstance(node, ast.Name))


def attributes(of: ast.ClassDef) -> Iterator[str]:
    """Attributes that methods set, and arguments of the constructor."""
    for node in ast.walk(of):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            yield from (argument.arg for argument in node.args.args + node.args.kwonlyargs)
