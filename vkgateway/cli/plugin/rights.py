"""Rights that a user lacks: derived from the refused request, and reported with the way to get them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from vkgateway.api.names import GROUP, SYSTEM_NAMESPACE
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import Resource

if TYPE_CHECKING:
    from vkgateway.kube.requests import Params

UNKNOWN_USER: Final = "the user of this context"
REVIEW_SECONDS: Final = 1.0
"""Timeout of the questions about the user and its rights, which only improve a message."""
_SELF_REVIEWS: Final = Resource("apis/authentication.k8s.io/v1", "selfsubjectreviews", "SelfSubjectReview", False)
_SELF_ACCESS: Final = Resource(
    "apis/authorization.k8s.io/v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False
)
_RESOURCE_PATH: Final = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>.+))?)?"
)
_VERBS: Final[Mapping[str, str]] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_STATE_RESOURCES: Final = frozenset({"leases", "pods", "serviceaccounts"})
"""Resources in the gateway's namespace that its Role for readers covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Right to do one thing. Without a namespace, in all namespaces; with a `path`, the path of no resource."""

    verb: str
    resource: str = ""
    group: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    namespaced: bool = True
    path: str = ""

    @property
    def words(self) -> str:
        """The right in words, such as `list pods in namespace 'research'`."""
        if self.path:
            return f"{self.verb} the path {self.path}"
        what = f"{self._qualified}/{self.subresource}" if self.subresource else self._qualified
        named = f" {self.name!r}" if self.name else ""
        if not self.namespaced:
            return f"{self.verb} {what}{named}"
        return f"{self.verb} {what}{named} " + (f"in namespace {self.namespace!r}" if self.namespace else "everywhere")

    @property
    def question(self) -> str:
        """The arguments of `kubectl auth can-i`."""
        if self.path:
            return f"{self.verb} {self.path}"
        parts = [self.verb, f"{self._qualified}/{self.name}" if self.name else self._qualified]
        if self.subresource:
            parts.append(f"--subresource={self.subresource}")
        if self.namespaced:
            parts.append(f"--namespace={self.namespace}" if self.namespace else "--all-namespaces")
        return " ".join(parts)

    @property
    def _qualified(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource


class RefusedRequestError(errors.Forbidden):
    """403 for a request, with the right that it needs."""

    def __init__(self, right: Right, refusal: errors.Forbidden) -> None:
        super().__init__(
            refusal.message, status=refusal.status, reason=refusal.reason, server_message=refusal.server_message
        )
        self.right = right


def right_for(resource: Resource, verb: str, *, namespace: str | None = None, subresource: str = "") -> Right:
    """Return the right for requests on the objects of a kind, by default in all namespaces."""
    group = resource.prefix.removeprefix("apis/").rpartition("/")[0] if resource.prefix.startswith("apis/") else ""
    return Right(
        verb=verb,
        resource=resource.plural,
        group=group,
        namespace=(namespace or "") if resource.namespaced else "",
        subresource=subresource,
        namespaced=resource.namespaced,
    )


def right_of_request(method: str, path: str, params: Params | None = None) -> Right:
    """Return the right that a request needs. `path` is percent-encoded."""
    found = _RESOURCE_PATH.fullmatch(path)
    if found is None:
        return Right(verb=_VERBS.get(method, "get").replace("create", "post"), path=path)
    part = {key: unquote(value or "") for key, value in found.groupdict().items()}
    verb = _VERBS.get(method) or ("get" if part["name"] else "watch" if (params or {}).get("watch") else "list")
    return Right(verb=verb, namespaced=bool(part["namespace"]) or part["resource"] not in _CLUSTER_SCOPED, **part)


_CLUSTER_SCOPED: Final = frozenset(
    {
        "clusterroles",
        "computeclusters",
        "mutatingwebhookconfigurations",
        "namespaces",
        "nodes",
        "priorityclasses",
        "tenants",
        "validatingwebhookconfigurations",
    }
)
"""Kinds without a namespace that the commands read."""


async def read_user(client: Client) -> str:
    """Return the name of the client's user; `UNKNOWN_USER` if the server has no review of it (before 1.28)."""
    import msgspec

    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = msgspec.json.decode(await client.create(_SELF_REVIEWS, body, timeout=REVIEW_SECONDS))
        return str(answer["status"]["userInfo"]["username"])
    except (errors.ApiError, msgspec.DecodeError, KeyError, TypeError):
        return UNKNOWN_USER


async def missing_rights(client: Client, rights: Iterable[Right]) -> list[Right]:
    """Return those of the rights that the client's user lacks. Unanswered questions count as if it had the right."""
    asked = list(dict.fromkeys(rights))
    allowed = await asyncio.gather(*(_is_allowed(client, right) for right in asked))
    return [right for right, has in zip(asked, allowed, strict=True) if not has]


async def _is_allowed(client: Client, right: Right) -> bool:
    import msgspec

    spec: dict[str, Any]
    if right.path:
        spec = {"nonResourceAttributes": {"verb": right.verb, "path": right.path}}
    else:
        fields = ("verb", "group", "resource", "namespace", "name", "subresource")
        spec = {"resourceAttributes": {field: getattr(right, field) for field in fields if getattr(right, field)}}
    body = {"apiVersion": _SELF_ACCESS.api_version, "kind": _SELF_ACCESS.kind, "spec": spec}
    try:
        answer = msgspec.json.decode(await client.create(_SELF_ACCESS, body, timeout=REVIEW_SECONDS))
        return bool(answer["status"]["allowed"])
    except (errors.ApiError, msgspec.DecodeError, KeyError, TypeError):
        return True


def refusal_message(user: str, rights: Iterable[Right], *, server: str) -> str:
    """Return the sentence that names user, rights and cluster."""
    who = f"user {user!r}" if user != UNKNOWN_USER else user
    return f"{who} cannot {', '.join(right.words for right in rights)} (cluster {server})"


def refusal_hint(user: str, rights: Iterable[Right], *, options: str = "") -> str:
    """Return how to check each right, and the command with which an admin of the cluster grants it.

    `options` are the options of kubectl that select the cluster, if they are needed.
    """
    lines = []
    for right in rights:
        lines.append("Check: " + " ".join(filter(None, ("kubectl auth can-i", right.question, options))))
        if grant := grant_command(user, right):
            lines.append(f"An admin of the cluster can grant it: {grant}")
    return "\n       ".join(dict.fromkeys(lines))


def grant_command(user: str, right: Right) -> str:
    """Return the command that binds a ClusterRole with the right to the user; empty if no role should be bound."""
    subject = _subject_option(user)
    if right.group == GROUP:
        return f"kubectl create clusterrolebinding NAME --clusterrole=vkgateway-viewer {subject}"
    if right.namespace == SYSTEM_NAMESPACE and right.resource in _STATE_RESOURCES and right.subresource != "log":
        return f"kubectl create rolebinding NAME -n {SYSTEM_NAMESPACE} --role=vkgateway-state-reader {subject}"
    if right.path or right.resource == "secrets":
        return ""
    if not right.namespaced:
        role = f"kubectl create clusterrole {right.resource}-viewer --verb=get,list --resource={right.resource}"
        return f"{role} && kubectl create clusterrolebinding NAME --clusterrole={right.resource}-viewer {subject}"
    if right.namespace:
        return f"kubectl create rolebinding NAME -n {right.namespace} --clusterrole=view {subject}"
    return f"kubectl create clusterrolebinding NAME --clusterrole=view {subject}"


def _subject_option(user: str) -> str:
    account = user.removeprefix("system:serviceaccount:")
    if account != user:
        return f"--serviceaccount={account}"
    return f"--user={user}" if user != UNKNOWN_USER else "--user=USER"
