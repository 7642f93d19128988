"""Helm, built once, and the objects that it renders from the chart."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from operators.programs import HELM
from operators.published import provide_programs
from tests.support.machine import patience

CHART = Path(__file__).parents[2] / "deploy/chart/vkgateway"
Document = dict[str, Any]

ALL_APIS = ("--api-versions=cert-manager.io/v1", "--api-versions=monitoring.coreos.com/v1")


class Objects:
    """Rendered objects by kind and name."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.all = documents

    def find(self, kind: str, name: str) -> Document | None:
        """Return an object, None if it is not rendered."""
        found = [one for one in self.all if one["kind"] == kind and one["metadata"]["name"] == name]
        assert len(found) <= 1, f"{kind} {name} is rendered {len(found)} times"
        return found[0] if found else None

    def get(self, kind: str, name: str = "vkgateway") -> Document:
        """Return an object that must be rendered."""
        found = self.find(kind, name)
        assert found is not None, f"{kind} {name} is not rendered"
        return found

    def kinds(self, *kinds: str) -> list[Document]:
        """Return all objects of the kinds."""
        return [one for one in self.all if one["kind"] in kinds]

    def pods(self) -> Iterator[Document]:
        """Yield the specs of all pods."""
        for one in self.all:
            if one["kind"] == "Pod":
                yield one["spec"]
            elif one["kind"] in ("Deployment", "StatefulSet"):
                yield one["spec"]["template"]["spec"]


class Helm:
    """The program, with the chart as its argument."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run helm and return its output."""
        return subprocess.run(
            [str(self._program), *args], capture_output=True, text=True, check=False, timeout=patience(60)
        )

    def template(self, *args: str, chart: Path = CHART, namespace: str = "vkgateway-system") -> str:
        """Return the rendered text. Raises RefusedValuesError with helm's message."""
        result = self.run("template", "vkgateway", str(chart), f"--namespace={namespace}", *args)
        if result.returncode != 0:
            raise RefusedValuesError(result.stderr)
        return result.stdout

    def render(self, *args: str, chart: Path = CHART) -> Objects:
        """Return the rendered objects."""
        return Objects([one for one in yaml.safe_load_all(self.template(*args, chart=chart)) if one])


class RefusedValuesError(Exception):
    """Helm refuses the values."""


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Return Helm; the first run builds it."""
    return Helm(asyncio.run(provide_programs(HELM, report=print)) / "helm")
