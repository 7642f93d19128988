"""Every client of the gateway that may write checks whether this replica leads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import vkgateway

SOURCES = Path(vkgateway.__file__).parent
MAKERS = {"connect_management", "create_client", "Client"}
UNGUARDED = {
    ("serve/daemon.py", "_run_gateway"): "the client of the Lease itself",
    ("serve/addresses.py", "connect_management"): "its callers guard it",
    ("planes/access.py", "create_client"): "its callers guard it",
}


def unguarded_functions() -> Iterator[tuple[str, str]]:
    """Yield the functions that make more clients than they guard."""
    for package in sorted({folder.name for folder in SOURCES.iterdir() if folder.is_dir()} - {"cli", "kube"}):
        for file in sorted((SOURCES / package).rglob("*.py")):
            for function in ast.walk(ast.parse(file.read_text())):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    names = [name_of(call) for call in ast.walk(function) if isinstance(call, ast.Call)]
                    if sum(name in MAKERS for name in names) > names.count("guard_writes"):
                        yield str(file.relative_to(SOURCES)), function.name


def name_of(call: ast.Call) -> str:
    """Return the name of the called function or method; of a class method of Client, that of the class."""
    called = call.func
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "Client":
        return "Client"
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def test_all_clients_that_may_write_are_guarded() -> None:
    assert set(unguarded_functions()) == UNGUARDED.keys()
