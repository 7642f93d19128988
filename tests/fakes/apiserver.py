"""A Kubernetes API server for unit tests: any kind, over real HTTP on loopback, with faults on demand.

    async with FakeApiServer() as server, server.client() as client:
        server.store.create(PODS, {"metadata": {"name": "a"}})
        server.fail("GET", "/pods", status=429, retry_after=1)

It knows lists with pages and selectors, watches with bookmarks, history and 410, streaming lists, all four
patch types, the status, resize, ephemeralcontainers, binding, eviction and token subresources, graceful
deletion, finalizers, preconditions, dry runs and discovery. It validates nothing, refuses only what `rights` do not
allow, and drops fields of pods that `unknown_fields` names.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.fakes import patches
from tests.fakes.fields import without_fields
from tests.fakes.managed_fields import after_apply
from tests.fakes.rights import Rights
from tests.fakes.store import Change, ObjectStore, Refusal, Selection
from tests.support.machine import patience
from vkgateway.api.times import render_time
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import INITIAL_EVENTS_END
from vkgateway.kube.resources import CRDS, KNOWN_RESOURCES, PODS, Resource

Document = dict[str, Any]

_APPLY = "application/apply-patch+yaml"
_PATCHES = {
    "application/merge-patch+json": patches.apply_merge_patch,
    "application/strategic-merge-patch+json": patches.apply_strategic_patch,
    "application/json-patch+json": patches.apply_json_patch,
}
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass
class Fault:
    """Effect on the next `times` matching requests instead of a response."""

    method: str
    path: str
    status: int
    times: int
    reason: str = ""
    retry_after: float | None = None
    gate: asyncio.Event | None = None
    message: str = "a fault that the test asked for"
    hits: int = field(default=0, init=False)

    def matches(self, request: web.Request) -> bool:
        return self.times > 0 and self.method in ("*", request.method) and self.path in request.path_qs


@dataclass(frozen=True)
class Target:
    """Object or list that a request's path names."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class FakeApiServer:
    """The server. `store` holds its objects, `requests` its requests (`"GET /api/v1/pods?limit=500"`)."""

    def __init__(
        self,
        *,
        store: ObjectStore | None = None,
        streaming_lists: bool = True,
        token: str = "",
        rights: Rights | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: the server is reached over TLS."""
        self.store = store or ObjectStore()
        self._tls = tls
        self.rights = rights
        self.streaming_lists = streaming_lists
        self.token = token
        self.token_lifetime = timedelta(hours=1)
        self.requests: list[str] = []
        self.user_agents: set[str] = set()
        self.logs: dict[tuple[str, str, str], str] = {}
        """Logs of containers, by namespace, pod and container."""
        self.unknown_fields: tuple[str, ...] = ()
        """Fields of pods that it drops, like a server whose feature gate is off: `spec.volumes[].image`."""
        self.refused_images: tuple[str, ...] = ()
        """Prefixes of images of ephemeral containers that its webhook refuses."""
        self.ancient = False
        """Ignores unknown parameters of a watch, like a server without streaming lists."""
        self.watches = 0
        """Number of running watches."""
        self.url = ""
        self._faults: list[Fault] = []
        self._kinds = {(known.prefix, known.plural): known for known in KNOWN_RESOURCES.values()}
        self._bookmarks = 0
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._kept: socket.socket | None = None
        """While it is stopped: keeps its port from all other programs of the machine."""

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen on loopback; after `stop` on the same port."""
        port = self._kept.getsockname()[1] if self._kept is not None else 0
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle_request)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=self._tls, backlog=1024)
        await site.start()
        self._release_port()
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        """Port it listens on."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop: running watches are cut, and new connections are refused. No other program gets the port."""
        self.end_watches()
        if self._runner is not None:
            port = self.port
            await self._runner.cleanup()
            self._runner = None
            self._kept = socket.socket()
            self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._kept.bind(("127.0.0.1", port))

    def _release_port(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        self._release_port()

    def client(self, name: str = "fake") -> Client:
        """Return a client of this server."""
        return Client(self.url, name=name)

    # -- what tests ask of it --------------------------------------------------------------------------------------

    def fail(
        self,
        method: str,
        path: str,
        *,
        status: int,
        times: int = 1,
        reason: str = "",
        retry_after: float | None = None,
    ) -> Fault:
        """Respond with an error to the next requests whose method and path match (a part of it, including the query).

        Status 0 closes the connection without a response.
        """
        fault = Fault(method, path, status, times, reason, retry_after)
        self._faults.append(fault)
        return fault

    def hold(self, method: str, path: str, *, times: int = 1) -> asyncio.Event:
        """Block the next matching requests until the returned event is set, then serve them."""
        gate = asyncio.Event()
        self._faults.append(Fault(method, path, 200, times, gate=gate))
        return gate

    def heal(self) -> None:
        """Remove all faults, and serve blocked requests."""
        for fault in self._faults:
            if fault.gate is not None:
                fault.gate.set()
        self._faults.clear()

    def bookmark(self) -> None:
        """Send a bookmark on every watch."""
        self._bookmarks += 1
        self.store.wake()

    def end_watches(self) -> None:
        """End every running watch, as servers do at their timeout."""
        self._ended.set()
        self._ended = asyncio.Event()
        self.store.wake()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds that requests or watches bring about, for 30 s at most."""
        async with asyncio.timeout(patience(30)):
            while not condition():
                await self._changed.wait()

    def _wake_waiters(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def register(self, resource: Resource) -> None:
        """Serve one more kind. A created CustomResourceDefinition does this, too."""
        self._kinds[resource.prefix, resource.plural] = resource

    def unregister(self, resource: Resource) -> None:
        """Stop to serve a kind in this version, and end its watches."""
        del self._kinds[resource.prefix, resource.plural]
        self.end_watches()

    # -- requests --------------------------------------------------------------------------------------------------

    async def _handle_request(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        self.user_agents.add(request.headers.get("User-Agent", ""))
        self._wake_waiters()
        try:
            refused = await self._apply_fault(request)
            if refused is not None:
                return refused
            if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            return await self._dispatch(request)
        except Refusal as refusal:
            return _status(refusal)

    async def _apply_fault(self, request: web.Request) -> web.StreamResponse | None:
        fault = next((fault for fault in self._faults if fault.matches(request)), None)
        if fault is None:
            return None
        fault.times -= 1
        fault.hits += 1
        if fault.gate is not None:
            await fault.gate.wait()
            return None
        if fault.status == 0:
            assert request.transport is not None
            request.transport.abort()
        answer = _status(Refusal(fault.status or 500, fault.reason, fault.message))
        if fault.retry_after is not None:
            answer.headers["Retry-After"] = f"{fault.retry_after:g}"
        return answer

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        size = 2 if parts[:1] == ["api"] else 3
        if parts in (["version"], ["healthz"], ["readyz"], ["livez"]):
            return web.json_response({"gitVersion": "v1.36.3"}) if parts == ["version"] else web.Response(text="ok")
        if len(parts) == size:
            return self._serve_discovery("/".join(parts))
        if len(parts) == 2 and parts[0] == "apis":
            return self._serve_group(parts[1])
        target = self._parse_target(parts, size)
        self._authorize(request, target)
        if not target.name:
            return await self._serve_collection(request, target)
        return await self._serve_object(request, target)

    def _authorize(self, request: web.Request, target: Target) -> None:
        """Refuse requests without the needed rights. To apply a missing object also requires `create`."""
        if self.rights is None:
            return
        verbs = [_VERBS[request.method]]
        if request.method == "GET" and not target.name:
            verbs = ["watch" if request.query.get("watch") in ("true", "1") else "list"]
        if request.content_type == _APPLY and self.store.find(target.resource, target.name, target.namespace) is None:
            verbs.append("create")
        for verb in verbs:
            place = {"namespace": target.namespace, "name": target.name, "subresource": target.subresource}
            if not self.rights.allow(verb, target.resource, **place):
                what = "/".join(filter(None, (target.resource.plural, target.subresource)))
                raise Refusal(403, "Forbidden", f'cannot {verb} resource "{what}"')

    def _parse_target(self, parts: list[str], size: int) -> Target:
        prefix, rest = "/".join(parts[:size]), parts[size:]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and (prefix, rest[2]) in self._kinds:
            namespace, rest = rest[1], rest[2:]
        resource = self._kinds.get((prefix, rest[0])) if rest else None
        if resource is None:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        rest = [*rest, "", ""]
        return Target(resource, namespace, rest[1], rest[2])

    def _serve_group(self, name: str) -> web.Response:
        prefixes = dict.fromkeys(where for where, _ in self._kinds if where.startswith(f"apis/{name}/"))
        if not prefixes:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        versions = [{"groupVersion": where[len("apis/") :], "version": where.rpartition("/")[2]} for where in prefixes]
        group = {"kind": "APIGroup", "name": name, "versions": versions, "preferredVersion": versions[0]}
        return web.json_response(group)

    def _serve_discovery(self, prefix: str) -> web.Response:
        kinds = [known for (where, _), known in self._kinds.items() if where == prefix]
        if not kinds:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        entries = [{"name": k.plural, "kind": k.kind, "namespaced": k.namespaced} for k in kinds]
        return web.json_response({"kind": "APIResourceList", "resources": entries})

    async def _serve_collection(self, request: web.Request, target: Target) -> web.StreamResponse:
        if request.method == "POST":
            new = self._known_fields(target, await request.json())
            with self.store.dry_run(_is_dry(request)):
                document = self.store.create(target.resource, new, target.namespace)
                self._define(document)
            return web.json_response(document, status=201)
        query = request.query
        selection = Selection(target.namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        if query.get("watch") in ("true", "1"):
            return await self._watch(request, target.resource, selection)
        if request.method != "GET":
            raise Refusal(405, "MethodNotAllowed", "the server does not allow this method")
        return web.json_response(self._build_list(target.resource, selection, query))

    def _build_list(self, resource: Resource, selection: Selection, query: Any) -> Document:
        found = [document for document in self.store.all(resource) if selection.matches(document)]
        start, version = 0, self.store.version
        if query.get("continue"):
            if query.get("resourceVersion") or query.get("resourceVersionMatch"):
                raise Refusal(400, "BadRequest", "specifying resource version is not allowed when using continue")
            version, start = json.loads(base64.b64decode(query["continue"]))
            if version < self.store.oldest:
                raise Refusal(410, "Expired", "The provided continue parameter is too old")
        limit = int(query.get("limit") or 0) or len(found)
        metadata: Document = {"resourceVersion": str(version)}
        if start + limit < len(found):
            token = json.dumps([version, start + limit]).encode()
            metadata["continue"] = base64.b64encode(token).decode()
        return {"kind": f"{resource.kind}List", "metadata": metadata, "items": found[start : start + limit]}

    def _define(self, document: Document) -> None:
        if document["kind"] != CRDS.kind:
            return
        spec, name = document["spec"], document["metadata"]["name"]
        for version in spec["versions"]:
            prefix = f"apis/{spec['group']}/{version['name']}"
            names = spec["names"]
            self.register(Resource(prefix, names["plural"], names["kind"], spec["scope"] == "Namespaced"))
        established = {"conditions": [{"type": "Established", "status": "True"}]}
        self.store.update(CRDS, document | {"status": established}, name=name, status=True)

    # -- single objects --------------------------------------------------------------------------------------------

    async def _serve_object(self, request: web.Request, target: Target) -> web.StreamResponse:
        store, resource = self.store, target.resource
        if request.method == "POST":
            return self._run_action(target, await request.json())
        if request.method == "GET" and target.subresource == "log":
            container = request.query.get("container", "")
            return web.Response(text=self.logs.get((target.namespace, target.name, container), ""))
        if request.method == "GET":
            return web.json_response(store.get(resource, target.name, target.namespace))
        if request.method == "PATCH":
            return await self._patch(request, target)
        if request.method == "PUT":
            status = target.subresource == "status"
            return web.json_response(
                store.update(
                    resource, await request.json(), name=target.name, namespace=target.namespace, status=status
                )
            )
        options = await request.json() if request.can_read_body else {}
        wanted = options.get("preconditions") or {}
        return web.json_response(
            store.delete(
                resource,
                target.name,
                target.namespace,
                uid=wanted.get("uid"),
                version=wanted.get("resourceVersion"),
                grace=options.get("gracePeriodSeconds"),
            )
        )

    async def _patch(self, request: web.Request, target: Target) -> web.StreamResponse:
        store, patch = self.store, await request.json()
        old = store.find(target.resource, target.name, target.namespace)
        if request.content_type == _APPLY:
            metadata = patch.setdefault("metadata", {})
            metadata["managedFields"] = after_apply(old, patch, manager=request.query.get("fieldManager", ""))
            if old is None:
                document = store.create(target.resource, patch, target.namespace)
                self._define(document)
                return web.json_response(document, status=201)
            new = patches.apply_merge_patch(old, patch)
        else:
            old = store.get(target.resource, target.name, target.namespace)
            try:
                new = copy.deepcopy(_PATCHES[request.content_type](old, patch))
            except ValueError as error:
                raise Refusal(422, "Invalid", str(error)) from error
            if target.resource is PODS and target.subresource != "status":
                _check_pod_change(target.subresource, old["spec"], new["spec"])
                self._check_images(new["spec"])
            if isinstance(patch, dict) and "resourceVersion" not in patch.get("metadata", {}):
                new["metadata"].pop("resourceVersion", None)
        with store.dry_run(_is_dry(request)):
            changed = store.update(
                target.resource,
                self._known_fields(target, new),
                name=target.name,
                namespace=target.namespace,
                status=target.subresource == "status",
                applied=request.content_type == _APPLY,
            )
        return web.json_response(changed)

    def _check_images(self, spec: Document) -> None:
        for container in spec.get("ephemeralContainers", []):
            if self.refused_images and container["image"].startswith(self.refused_images):
                why = f"{container['image']} is not allowed"
                raise Refusal(403, "Forbidden", f'admission webhook "images" denied the request: {why}')

    def _known_fields(self, target: Target, document: Document) -> Document:
        return without_fields(document, self.unknown_fields) if target.resource is PODS else document

    def _run_action(self, target: Target, body: Document) -> web.Response:
        store = self.store
        old = store.get(target.resource, target.name, target.namespace)
        if target.subresource == "binding":
            spec = old["spec"] | {"nodeName": body["target"]["name"]}
            store.update(PODS, old | {"spec": spec}, name=target.name, namespace=target.namespace)
        elif target.subresource == "eviction":
            options = body.get("deleteOptions") or {}
            uid = (options.get("preconditions") or {}).get("uid")
            grace = options.get("gracePeriodSeconds")
            store.delete(PODS, target.name, target.namespace, uid=uid, grace=grace)
        elif target.subresource == "token":
            lifetime_seconds = body["spec"].get("expirationSeconds") or int(self.token_lifetime.total_seconds())
            expires = render_time(store.now() + timedelta(seconds=lifetime_seconds))
            token = f"token.{target.namespace}.{target.name}.{store.version}"
            return web.json_response(body | {"status": {"token": token, "expirationTimestamp": expires}}, status=201)
        else:
            raise Refusal(404, "NotFound", f"no subresource {target.subresource}")
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    # -- watches -----------------------------------------------------------------------------------------------------

    async def _watch(self, request: web.Request, resource: Resource, selection: Selection) -> web.StreamResponse:
        query = request.query
        store, ended = self.store, self._ended
        streaming = query.get("sendInitialEvents") == "true"
        if streaming and not self.streaming_lists:
            raise Refusal(422, "Invalid", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch")
        since = int(query.get("resourceVersion") or 0) or store.version
        async with self._open_stream(request) as response:
            if since < store.oldest:
                await _send(response, "ERROR", _document(Refusal(410, "Expired", "too old resource version")))
                return response
            if streaming:
                for document in store.all(resource):
                    if selection.matches(document):
                        await _send(response, "ADDED", document)
                since = store.version
                if not self.ancient:
                    await _send(response, "BOOKMARK", _bookmark(resource, since, initial=True))
            marked = self._bookmarks
            while not ended.is_set():
                changed = store.changed
                for change in store.since(since):
                    await self._send_change(response, change, resource, selection)
                    since = change.version
                if marked != self._bookmarks:
                    marked = self._bookmarks
                    await _send(response, "BOOKMARK", _bookmark(resource, store.version))
                await changed.wait()
        return response

    @asynccontextmanager
    async def _open_stream(self, request: web.Request) -> AsyncIterator[web.StreamResponse]:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.watches += 1
        self._wake_waiters()
        try:
            yield response
        except ConnectionResetError:
            pass
        finally:
            self.watches -= 1
            self._wake_waiters()

    async def _send_change(
        self, response: web.StreamResponse, change: Change, resource: Resource, selection: Selection
    ) -> None:
        event = change.event(selection) if change.resource == resource else None
        if event is not None:
            await _send(response, *event)


def _is_dry(request: web.Request) -> bool:
    return request.query.get("dryRun") == "All"


def _check_pod_change(subresource: str, old: Document, new: Document) -> None:
    """Refuse changes that require a subresource, and changes that a subresource does not allow."""
    added = new.get("ephemeralContainers") != old.get("ephemeralContainers")
    resized = _amounts(new) != _amounts(old)
    rest = [{key: value for key, value in spec.items() if key not in _OF_SUBRESOURCES} for spec in (new, old)]
    if (
        added != (subresource == "ephemeralcontainers")
        or resized != (subresource == "resize")
        or (subresource and rest[0] != rest[1])
    ):
        raise Refusal(422, "Invalid", "spec: Forbidden: pod updates may not change fields other than these")


_OF_SUBRESOURCES = ("ephemeralContainers", "containers", "initContainers", "resources")


def _amounts(spec: Document) -> list[Any]:
    whole = [*spec.get("initContainers", []), *spec.get("containers", []), spec]
    return [part.get("resources") for part in whole]


async def _send(response: web.StreamResponse, kind: str, document: Document) -> None:
    line = json.dumps({"type": kind, "object": document}, separators=(",", ":"))
    await response.write(line.encode() + b"\n")


def _bookmark(resource: Resource, version: int, *, initial: bool = False) -> Document:
    metadata: Document = {"resourceVersion": str(version)}
    if initial:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}


def _document(refusal: Refusal) -> Document:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": str(refusal),
        "reason": refusal.reason,
        "details": {"causes": [{"reason": cause} for cause in refusal.causes]},
        "code": refusal.status,
    }


def _status(refusal: Refusal) -> web.Response:
    return web.json_response(_document(refusal), status=refusal.status)
