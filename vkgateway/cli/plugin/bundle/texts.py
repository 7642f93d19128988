"""Free text in a bundle: which messages are shown, and what of log lines (pure).

Messages that vkgateway composes of names and numbers are shown. Of a scheduler's message, its counts are shown. Any
other text may quote what a tenant or another program wrote, so only its length is shown. If the user asks for messages,
it is shown after known forms of secrets were removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from vkgateway.cli.plugin.bundle.shapes import REMOVED, host_of_url, plain
from vkgateway.kinds.pods.translation.conditions import PREEMPTED, RUN_LIMIT_REACHED
from vkgateway.scheduler.core.decisions import PendingReason

_QUOTING: Final = frozenset({PendingReason.INVALID})
"""Pending reasons whose message quotes what a tenant wrote."""
COMPOSED_REASONS: Final = frozenset(
    {
        *(str(reason) for reason in PendingReason if reason not in _QUOTING),
        PREEMPTED,
        RUN_LIMIT_REACHED,
        "EvictionWithdrawn",
        "InsideGuarantee",
        "ResizeDeferred",
        # Conditions of virtual nodes, Tenants and ComputeClusters that are well.
        "ComputeReady",
        "Connected",
        "KubeletHasSufficientMemory",
        "KubeletHasNoDiskPressure",
        "KubeletHasSufficientPID",
        "ComputeNetwork",
    }
)
"""Reasons whose messages vkgateway composes of names and numbers."""
_SCHEDULER_REASONS: Final = frozenset({"FailedScheduling", "Unschedulable", "Scheduled", "SchedulingGated"})
_SCHEDULER_PARTS: Final = re.compile(
    r"\d+/\d+ nodes are available|\d+ Insufficient [\w./-]{1,120}|no nodes available to schedule pods|"
    r"\d+ node\(s\) (?:didn't match Pod's node affinity/selector|had untolerated taint|were unschedulable|"
    r"didn't have free ports|had volume node affinity conflict|didn't satisfy plugin|"
    r"didn't match pod (?:anti-)?affinity rules|didn't match pod topology spread constraints)|"
    r"Scheduling is blocked due to non-empty scheduling gates"
)
_SECRET_FORMS: Final = (
    (re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL), REMOVED),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://\S+"), None),
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), rf"\1 {REMOVED}"),
    (re.compile(r"\bey[\w-]{8,}\.[\w-]+\.?[\w-]*"), REMOVED),
    (
        re.compile(
            r"(?i)([\w.-]*(?:password|passwd|secret|token|api[-_]?key|credential|authorization)[\w.-]*)(\s*[=:]\s*)\S+"
        ),
        rf"\1\2{REMOVED}",
    ),
    (re.compile(r"(Invalid value: )(?:\"(?:[^\"\\]|\\.)*\"|\S+)"), rf"\1{REMOVED}"),
    (re.compile(r"[A-Za-z0-9+/_=-]{32,}"), REMOVED),
)

_LOG_FIELDS: Final = frozenset(
    {
        *("timestamp", "level", "tenant", "namespace", "pod", "node", "compute", "kind", "name", "mode", "version"),
        *("address", "port", "lease", "status", "objects", "claim", "repair", "identity", "task", "uid", "mib", "gang"),
        *("process", "former", "reachable", "service", "volume", "container", "tenants", "pods", "everything_known"),
        *("gpu_seconds_lost", "gpu_seconds_saved", "run_limit", "holder", "setting", "reason"),
    }
)
"""Fields of the gateway's log whose values are names, numbers or states."""
_CONSOLE_LINE: Final = re.compile(r"(?P<timestamp>\d{4}-[\d-]+[T ][\d:.]+Z?) \[(?P<level>\w+)\s*\] (?P<rest>.*)")
_CONSOLE_FIELD: Final = re.compile(r"(?:^|\s)([a-z_]+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\S+)")
_FRAME: Final = re.compile(r'\s*File "[^"]*?(vkgateway/[\w/]+\.py)", line (\d+), in (\w+)')
_EVENT: Final = re.compile(r"[\w ,;:.'()/-]{1,160}")
"""Event of a log line. The code has them as constants."""
_COLORS: Final = re.compile(r"\x1b\[[0-9;]*m")


def message_filter(*, include: bool) -> Callable[[str, Any], Any]:
    """Return the function that maps a reason and its message to what is shown. `include`: messages were asked for."""
    return _scrub_message if include else allowed_message


def allowed_message(reason: str, message: Any) -> Any:
    """Return a message that vkgateway composes, the counts of a scheduler's message, or the length of another."""
    if not message:
        return message
    text = str(message)
    if reason in COMPOSED_REASONS:
        return scrub(text)
    parts = _SCHEDULER_PARTS.findall(text) if reason in _SCHEDULER_REASONS else []
    return "; ".join(parts) if parts else f"(removed: {len(text)} characters)"


def _scrub_message(_: str, message: Any) -> Any:
    return scrub(str(message)) if message else message


def scrub(text: str) -> str:
    """Return a text without known forms of secrets: URLs, tokens, keys, long strings without spaces."""
    for form, replacement in _SECRET_FORMS:
        text = form.sub(replacement if replacement is not None else lambda found: str(host_of_url(found[0])), text)
    return text


def redact_log(text: str, *, include: bool = False) -> str:
    """Return the lines of the gateway's log as JSON, with the allowed fields.

    Other lines are left out, and counted. Of tracebacks, the lines of vkgateway's own code stay.
    """
    lines: list[str] = []
    left_out = 0
    for line in text.splitlines():
        found = _redact_line(_COLORS.sub("", line), include=include)
        if found is None:
            left_out += 1
            continue
        lines.append(found)
    if left_out:
        lines.append(_encode({"removedLines": left_out}))
    return "".join(f"{line}\n" for line in lines)


def _redact_line(line: str, *, include: bool) -> str | None:
    frame = _FRAME.match(line)
    if frame is not None:
        return _encode({"frame": f"{frame[1]}:{frame[2]} {frame[3]}"})
    fields = _parse_line(line)
    event = None if fields is None else fields.get("event")
    if fields is None or not isinstance(event, str) or not _EVENT.fullmatch(event):
        return None
    kept = {key: plain(value) for key, value in fields.items() if key in _LOG_FIELDS}
    others = [key for key in fields if key not in _LOG_FIELDS and key != "event"]
    shown = {key: scrub(str(fields[key])) if include else REMOVED for key in others if key.isidentifier()}
    return _encode({"event": event, **kept, **shown})


def _parse_line(line: str) -> Mapping[str, Any] | None:
    if line.startswith("{"):
        try:
            fields = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return None
        return fields if isinstance(fields, dict) else None
    found = _CONSOLE_LINE.fullmatch(line)
    if found is None:
        return None
    begin = re.search(r"\s[a-z_]+=", found["rest"])
    event = found["rest"][: begin.start()] if begin else found["rest"]
    fields = {key: value.strip("'\"") for key, value in _CONSOLE_FIELD.findall(found["rest"][len(event) :])}
    return {"event": event.strip(), "timestamp": found["timestamp"], "level": found["level"], **fields}


def _encode(fields: Mapping[str, Any]) -> str:
    return msgspec.json.encode(fields).decode()
