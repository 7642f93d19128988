"""What a wheel holds: every file that the code reads at run time."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import vkgateway
from vkgateway.controlplane.templates import SHIPPED_FOLDER

PACKAGE = Path(vkgateway.__file__).parent
ROOT = PACKAGE.parent


def test_every_data_file_is_packaged() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["vkgateway"]
    data = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc", ".pyi"}
    ]
    assert {path.suffix for path in data} >= {".yaml", ".j2", ".proto"}
    # setuptools' `**/` stands for any number of folders, none among them.
    packaged = [path for path in data if any(fnmatch(f"/{path}", f"/{one}".replace("/**/", "*/")) for one in patterns)]
    assert not set(data) - set(packaged)


def test_the_folders_at_the_top_lead_into_the_package() -> None:
    assert (ROOT / "tenant_templates").resolve() == SHIPPED_FOLDER
    leads = {
        "crds": "model/crds",
        "rbac": "gateway/rbac",
        "compute": "gateway/recommended_policies",
        "management": "gateway/management_policies",
    }
    for folder, inside in leads.items():
        shipped = {path.resolve() for path in (PACKAGE / inside).glob("*.yaml")}
        assert {link.resolve() for link in (ROOT / "deploy" / folder).iterdir()} == shipped != set()
