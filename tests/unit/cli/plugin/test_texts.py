"""Tests of free text in bundles: messages, known forms of secrets, log lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import vkgateway
from vkgateway.cli.plugin.bundle.shapes import Shape, apply_shape, host_of_url, image, phrase, plain, safe_labels
from vkgateway.cli.plugin.bundle.texts import allowed_message, redact_log, scrub
from vkgateway.scheduler.core.decisions import PendingReason

PACKAGE = Path(vkgateway.__file__).parent
CANARY = "c4n4ry"


@pytest.mark.parametrize(
    ("reason", "message", "shown"),
    [
        ("WaitingForRoom", "needs 2 pods; place 2 in a100.local", "needs 2 pods; place 2 in a100.local"),
        (PendingReason.INVALID, f"gang-min '{CANARY}' is no number", "(removed: 30 characters)"),
        ("Failed", f"exec: sh -c {CANARY}", "(removed: 18 characters)"),
        (
            "FailedScheduling",
            f"0/3 nodes are available: 2 Insufficient nvidia.com/gpu, {CANARY}.",
            "0/3 nodes are available; 2 Insufficient nvidia.com/gpu",
        ),
        ("Unschedulable", CANARY, "(removed: 6 characters)"),
        ("", None, None),
    ],
)
def test_only_composed_messages_are_shown(reason: str, message: str | None, shown: str | None) -> None:
    assert allowed_message(reason, message) == shown


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {CANARY}",
        f"https://user:{CANARY}@host/path",
        f"webhook https://hooks.example/services/{CANARY}?x=1 failed",
        f"password={CANARY}",
        f"AWS_SECRET_KEY: {CANARY}",
        f"api-key = {CANARY}",
        f'Invalid value: "{CANARY}"',
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}",
        f"eyJhbGciOiJSUzI1NiJ9.{CANARY}.sig",
        f"key {CANARY}{'a1' * 20}",
    ],
)
def test_known_forms_of_secrets_are_removed(text: str) -> None:
    assert CANARY not in scrub(text)


def test_plain_sentences_stay() -> None:
    text = "needs 2 pods of nvidia.com/gpu 8; expected start between 13:00 and 13:40 UTC"
    assert scrub(text) == text


@pytest.mark.parametrize(
    "line",
    [
        f'{{"event": "refused", "error": "{CANARY}", "timestamp": "2026-11-26T10:00:00Z", "level": "warning"}}',
        f"2026-11-26T10:00:00Z [warning  ] event not written              error='a {CANARY} b' key={CANARY}",
        f'{{"event": "stream refused", "{CANARY} x": 1, "tenant": "alpha"}}',
        f'{{"event": "stream refused", "tenant": "<{CANARY}>"}}',
        f"WARNING asyncio {CANARY}",
        f"ValueError: {CANARY}",
        f'  File "/home/{CANARY}/x.py", line 3, in f',
        f"    send({CANARY!r})",
        f'{{"event": "{CANARY} = {{}}"}}',
    ],
)
def test_log_lines_lose_free_text(line: str) -> None:
    assert CANARY not in redact_log(line)


def test_log_lines_keep_what_identifies_the_problem() -> None:
    lines = [
        "2026-11-26T10:00:00Z [warning  ] tenant's API server is not ready tenant=alpha error='no route'",
        '  File "/x/site-packages/vkgateway/kube/client.py", line 3, in get',
        "something else",
    ]
    found = [msgspec.json.decode(line) for line in redact_log("\n".join(lines)).splitlines()]
    assert found == [
        {
            "event": "tenant's API server is not ready",
            "timestamp": "2026-11-26T10:00:00Z",
            "level": "warning",
            "tenant": "alpha",
            "error": "(removed)",
        },
        {"frame": "vkgateway/kube/client.py:3 get"},
        {"removedLines": 1},
    ]
    assert "no route" in redact_log(lines[0], include=True)


def test_events_of_the_log_are_constants() -> None:
    """A bundle shows them, so they must not contain values."""
    values = [call for call in log_calls() if call.args and not isinstance(call.args[0], ast.Constant)]
    assert {ast.unparse(call.args[0]) for call in values} <= {"f'{self._name} listens'"}


def log_calls() -> Iterator[ast.Call]:
    levels = {"debug", "info", "warning", "error", "exception", "critical"}
    for file in PACKAGE.rglob("*.py"):
        for found in ast.walk(ast.parse(file.read_text())):
            if not isinstance(found, ast.Call) or not isinstance(found.func, ast.Attribute):
                continue
            if found.func.attr in levels and ast.unparse(found.func.value).rpartition(".")[2] in ("log", "_log"):
                yield found


def test_shapes_keep_only_named_fields_of_the_expected_type() -> None:
    shape: Shape = {"name": plain, "list": [{"a": plain}], "map": {"x": plain}}
    found = apply_shape(shape, {"name": "n", "other": CANARY, "list": [{"a": 1, "b": CANARY}], "map": CANARY})
    assert found == {"name": "n", "list": [{"a": 1}], "map": "(removed)"}


def test_values_that_may_hide_secrets_are_removed() -> None:
    assert image(f"user:{CANARY}@registry/x") == "(removed)"
    assert image("registry:5000/team/app:1@sha256:" + "a" * 64).startswith("registry")
    assert host_of_url(f"https://u:{CANARY}@host:8443/p/{CANARY}?t={CANARY}") == "https://host:8443/(removed)"
    assert safe_labels({"vkgateway.io/pool": "a100", "key": CANARY}) == {
        "vkgateway.io/pool": "a100",
        "key": "(removed)",
    }
    assert plain(f"{CANARY}\n") == plain(f"a {CANARY}") == phrase(f"key={CANARY}") == "(removed)"
    assert phrase("Debian GNU/Linux 12 (bookworm)") == "Debian GNU/Linux 12 (bookworm)"
