"""Replies to tenants after the compute cluster refused a request: a kubelet's messages without machine details."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from vkgateway.kube.upgrade import RefusedStream
from vkgateway.nodes.http import Reply
from vkgateway.nodes.target import PodTarget

_MAX_MESSAGE_LENGTH: Final = 1024
_PASSED_STATUSES: Final = frozenset({400, 404, 409, 413, 422})
"""Statuses for errors of the request or the container, not of the compute cluster."""
_CONTAINER_MISSING: Final = re.compile(
    r'container not found \("[a-z0-9.-]+"\)|container [a-z0-9.-]+ not found in pod [a-z0-9._-]+'
)
"""Messages of kubelets, with status 500, for a container that does not exist or does not run."""
_MACHINE_WORDS: Final = re.compile(
    r"\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:]+\]:\d|\w://|/var/|/run/|/sys/|\bnodes? \"|\bx509\b|\bdial\b"
)
"""Addresses, URLs, host paths, nodes and connections."""


class _Status(msgspec.Struct):
    kind: str = ""
    message: str = ""


_decode = msgspec.json.Decoder(_Status).decode


def error_message(body: bytes) -> str:
    """Return the message in a response body: the message of a Status object, or the text itself."""
    try:
        status = _decode(body)
    except msgspec.DecodeError:
        return body.decode("utf-8", "replace").strip()
    return status.message if status.kind == "Status" else ""


def error_reply(refused: RefusedStream, *, target: PodTarget, namespace: str, what: str) -> Reply:
    """Return the reply to the tenant after a refusal. `what` is the requested resource (`logs`)."""
    message = translate_message(error_message(refused.body), target=target, namespace=namespace)
    if refused.status in _PASSED_STATUSES and message:
        return Reply.from_text(refused.status, message)
    container = _CONTAINER_MISSING.search(message)
    if container:
        return Reply.from_text(404, container.group())
    if refused.status == 429:
        return Reply.from_text(429, f"too many requests for {what} at the moment, try again")
    return Reply.from_text(500, unavailable_message(what, pod=f"{namespace}/{target.name}"))


def unavailable_message(what: str, *, pod: str) -> str:
    """Return the message for an internal error of the compute cluster."""
    return f"{what} of pod {pod} cannot be reached at the moment, try again"


def translate_message(message: str, *, target: PodTarget, namespace: str) -> str:
    """Return a message with the tenant's names, or an empty string if the message contains machine details."""
    message = message.replace(target.namespace, namespace)
    if target.uid:
        message = message.replace(target.uid, "")
    if len(message) > _MAX_MESSAGE_LENGTH or _MACHINE_WORDS.search(message):
        return ""
    return message
