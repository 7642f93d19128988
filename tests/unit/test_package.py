"""What the wheels hold: every file that the code reads at run time, and matching versions and requirements."""

from __future__ import annotations

import ast
import tomllib
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import grimp
import pytest

import vkgateway
from vkgateway.planes.templates import SHIPPED_FOLDER
from vkgateway.version import __version__

PACKAGE = Path(vkgateway.__file__).parent
ROOT = PACKAGE.parent
SET_AFTER_CONSTRUCTION = {
    "authorization.py: context": "an SSLContext",
    "heap.py: mallopt": "a function of the C library",
    "heap.py: malloc_trim": "a function of the C library",
}
PROJECTS = {"vkgateway": ROOT, "vkgateway_platform": ROOT / "vkgateway_platform"}


def settings(package: str) -> dict[str, Any]:
    return tomllib.loads((PROJECTS[package] / "pyproject.toml").read_text())


@pytest.mark.parametrize(
    ("package", "kinds"), [("vkgateway", {".yaml", ".j2", ".proto"}), ("vkgateway_platform", {".yaml", ".go", ".txt"})]
)
def test_every_data_file_is_packaged(package: str, kinds: set[str]) -> None:
    patterns = settings(package)["tool"]["setuptools"]["package-data"][package]
    folder = ROOT / package
    data = [
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc", ".pyi"}
    ]
    assert {path.suffix for path in data} >= kinds
    # setuptools' `**/` stands for any number of folders, none among them.
    packaged = [path for path in data if any(fnmatch(f"/{path}", f"/{one}".replace("/**/", "*/")) for one in patterns)]
    assert set(data) - set(packaged) <= {Path("LICENSE"), Path("README.md"), Path("pyproject.toml")}


def test_both_packages_have_one_version_and_the_same_requirements() -> None:
    product, platform = (settings(package)["project"] for package in PROJECTS)
    assert product["version"] == platform["version"] == __version__
    assert set(platform["dependencies"]) - set(product["dependencies"]) == {f"vkgateway=={__version__}"}
    for field in ("authors", "license", "requires-python", "classifiers"):
        assert product[field] == platform[field]


def test_the_folders_at_the_top_lead_into_the_package() -> None:
    assert (ROOT / "tenant_templates").resolve() == SHIPPED_FOLDER
    leads = {
        "crds": "api/crds",
        "rbac": "serve/rbac",
        "compute": "serve/recommended_policies",
        "management": "serve/management_policies",
    }
    for folder, inside in leads.items():
        shipped = {path.resolve() for path in (PACKAGE / inside).glob("*.yaml")}
        assert {link.resolve() for link in (ROOT / "deploy" / folder).iterdir()} == shipped != set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("vkgateway", "vkgateway_platform", exclude_type_checking_imports=True)
    order = TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules})
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_gateway_is_wired_with_constructors() -> None:
    """A part has what it needs from its constructor on: nothing in `serve` sets an attribute of another object."""
    found = {
        f"{file.name}: {ast.unparse(node.value)}"
        for file in (PACKAGE / "serve").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) != "self"
    }
    assert found == SET_AFTER_CONSTRUCTION.keys()
