"""What a tenant is told when the compute side refuses: a kubelet's words, with nothing of the machines below."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from vkgateway.kube.upgrade import RefusedStream
from vkgateway.kubelet.http import Reply
from vkgateway.kubelet.target import PodTarget

_MAX_MESSAGE_LENGTH: Final = 1024
_PASSED_STATUSES: Final = frozenset({400, 404, 409, 413, 422})
"""Statuses by which the compute cluster speaks of the request or the container, not of itself."""
_CONTAINER_MISSING: Final = re.compile(
    r'container not found \("[a-z0-9.-]+"\)|container [a-z0-9.-]+ not found in pod [a-z0-9._-]+'
)
"""Kubelets tell so, with status 500, of a container that is not there, or does not run any more."""
_MACHINE_WORDS: Final = re.compile(
    r"\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:]+\]:\d|\w://|/var/|/run/|/sys/|\bnodes? \"|\bx509\b|\bdial\b"
)
"""Addresses, URLs, paths of hosts, talk of nodes and connections."""


class _Status(msgspec.Struct):
    kind: str = ""
    message: str = ""


_decode = msgspec.json.Decoder(_Status).decode


def error_message(body: bytes) -> str:
    """The message in an answer's body: of a Status object, or the text itself."""
    try:
        status = _decode(body)
    except msgspec.DecodeError:
        return body.decode("utf-8", "replace").strip()
    return status.message if status.kind == "Status" else ""


def error_reply(refused: RefusedStream, *, target: PodTarget, namespace: str, what: str) -> Reply:
    """What the tenant, who knows the pod by `namespace`, hears of a refusal; `what` was asked for (`logs`)."""
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
    """The sentence for what went wrong below and is none of the tenant's business."""
    return f"{what} of pod {pod} cannot be reached at the moment, try again"


def translate_message(message: str, *, target: PodTarget, namespace: str) -> str:
    """The message in the tenant's words; empty where it speaks of the machines below."""
    message = message.replace(target.namespace, namespace)
    if target.uid:
        message = message.replace(target.uid, "")
    if len(message) > _MAX_MESSAGE_LENGTH or _MACHINE_WORDS.search(message):
        return ""
    return message
