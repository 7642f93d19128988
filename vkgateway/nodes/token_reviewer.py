"""Authentication and authorization of bearer tokens by the tenant's API server.

Like a kubelet in webhook mode (https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/), the
gateway creates a TokenReview and SubjectAccessReviews, and caches the results for a short time. So an unmodified
metrics-server works in a tenant with its service account.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import NAMESPACES, Resource
from vkgateway.nodes.limits import StreamLimiter, TooManyStreamsError
from vkgateway.nodes.target import NodeProxy
from vkgateway.nodes.ttl_cache import TtlCache

ALLOWED_CACHE_SECONDS: Final = 60.0
"""Lifetime of a positive result, and so of a revoked token. Kubelets use two and five minutes."""
DENIED_CACHE_SECONDS: Final = 10.0
MAX_CONCURRENT_REVIEWS: Final = 8
"""Limit of a tenant's concurrent reviews for known callers."""
KNOWN_SECONDS: Final = 3600.0
"""Time since the last positive review of a token for which its caller is known, also if the next review is due."""
_MAX_TOKEN_LENGTH: Final = 16 * 1024
_MAX_CACHED: Final = 256
"""Cached results of each tenant."""
_MAX_USER_BYTES: Final = 16 * 1024
"""Size of a user with groups and extra, encoded. A tenant's API server, which a tenant may replace, answers with it."""
_TIMEOUT: Final = 5.0
_TOKEN_REVIEWS: Final = Resource("apis/authentication.k8s.io/v1", "tokenreviews", "TokenReview", namespaced=False)
_ACCESS_REVIEWS: Final = Resource(
    "apis/authorization.k8s.io/v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
_SUBRESOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "metrics": ("metrics",),
    "stats": ("stats",),
    "pods": ("pods", "proxy"),
    "runningpods": ("pods", "proxy"),
    "healthz": ("healthz", "proxy"),
    "configz": ("configz", "proxy"),
}
"""Subresources of `nodes` by path, like in pkg/kubelet/server/auth.go: a user needs `get` on one of them. Tokens are
not accepted for other paths."""

ReviewClients = Callable[[str], NodeProxy]
"""Returns the client of a tenant's API server. Raises vkgateway.api.errors.NotFoundError for an unknown tenant."""


class User(msgspec.Struct, frozen=True):
    """The user of a token."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}

    @property
    def digest(self) -> str:
        """Short text that no other user has."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


class _ReviewStatus(msgspec.Struct):
    authenticated: bool = False
    user: User = User()


class _Review(msgspec.Struct):
    status: _ReviewStatus = msgspec.field(default_factory=_ReviewStatus)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False
    denied: bool = False


class _Access(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


class _Named(msgspec.Struct):
    name: str


class _Item(msgspec.Struct):
    metadata: _Named


class _List(msgspec.Struct):
    items: tuple[_Item, ...] = ()


class TokenReviewer:
    """Reviewer of tokens through the tenants' API servers. Methods raise ApiError and TooManyStreamsError.

    Reviews of tokens that were not valid before have separate limits and a separate cache: however many there are,
    known callers keep their reviews and results.
    """

    def __init__(
        self, clients: ReviewClients, *, clock: Clock = SYSTEM_CLOCK, uid_of: Callable[[str], str] = lambda _tenant: ""
    ) -> None:
        """Create it; `uid_of` returns the UID of the Tenant of a name.

        Results for a deleted tenant are not those of a later one of the same name. A caller that drops them with
        `forget_tenant` needs no UIDs.
        """
        self._uid_of = uid_of
        self._clients = clients
        self._user_cache = TtlCache(clock, most=_MAX_CACHED)
        self._invalid_cache = TtlCache(clock, most=_MAX_CACHED)
        self._known = TtlCache(clock, most=_MAX_CACHED)
        self._turns = ReviewTurns()
        self._access_cache = TtlCache(clock, most=_MAX_CACHED)
        self._limiter = StreamLimiter(MAX_CONCURRENT_REVIEWS, what="reviews of tokens")

    def forget_tenant(self, tenant: str) -> None:
        """Drop the cached results of a tenant."""
        for cache in (self._user_cache, self._invalid_cache, self._known, self._access_cache):
            cache.forget_tenant(tenant)

    async def review_token(self, tenant: str, token: str, *, address: str | None) -> User | None:
        """Return the user of a token in a tenant, or None for an invalid token.

        `address` is that of the caller; None: its session proves that the token was valid before.
        """
        if not token or len(token) > _MAX_TOKEN_LENGTH:
            return None
        key = tenant, self._uid_of(tenant), hashlib.sha256(token.encode()).hexdigest()
        user: User | None = self._user_cache.get(key)
        if user is not None or self._invalid_cache.get(key) is not None:
            return user
        client = self._clients(tenant)  # a tenant that is not served costs no turn
        if address is None or self._known.get(key) is not None:
            with self._limiter.hold_stream(tenant):
                user = await _post_token(client, token)
        else:
            async with self._turns.take_turn(tenant, address):
                user = await _post_token(client, token)
        if user is None:
            self._known.forget(key)
            self._invalid_cache.put(key, True, seconds=DENIED_CACHE_SECONDS)
        else:
            self._known.put(key, True, seconds=KNOWN_SECONDS)
            self._user_cache.put(key, user, seconds=ALLOWED_CACHE_SECONDS)
        return user

    async def can_read_node(self, tenant: str, user: User, *, node: str, path: str) -> bool:
        """Return whether a user may read the path with this first segment at a node."""
        for subresource in _SUBRESOURCES.get(path, ()):
            if await self._can_get_subresource(tenant, user, node=node, subresource=subresource):
                return True
        return False

    async def can_get_path(self, tenant: str, user: User, path: str) -> bool:
        """Return whether a user may `get` a non-resource URL path, like `/metrics`."""
        return await self._review_access(tenant, user, {"nonResourceAttributes": {"verb": "get", "path": path}})

    async def can_get_object(
        self, tenant: str, user: User, *, group: str, resource: str, name: str, namespace: str = ""
    ) -> bool:
        """Return whether a user may `get` an object with this name, which need not exist. No namespace: in all."""
        attributes = {"verb": "get", "group": group, "resource": resource, "name": name}
        if namespace:
            attributes["namespace"] = namespace
        return await self._review_access(tenant, user, {"resourceAttributes": attributes})

    async def list_namespaces(self, tenant: str, *, most: int) -> tuple[str, ...]:
        """Return the names of a tenant's first namespaces."""
        with self._limiter.hold_stream(tenant):
            params = {"limit": str(most)}
            found = await self._clients(tenant).request("GET", NAMESPACES.path(), params=params, timeout=_TIMEOUT)
        return tuple(item.metadata.name for item in msgspec.json.decode(found, type=_List).items)

    async def _can_get_subresource(self, tenant: str, user: User, *, node: str, subresource: str) -> bool:
        attributes = {"verb": "get", "version": "v1", "resource": "nodes", "subresource": subresource, "name": node}
        return await self._review_access(tenant, user, {"resourceAttributes": attributes})

    async def _review_access(self, tenant: str, user: User, attributes: dict[str, dict[str, str]]) -> bool:
        key = tenant, self._uid_of(tenant), user.digest, hashlib.sha256(msgspec.json.encode(attributes)).hexdigest()
        allowed: bool | None = self._access_cache.get(key)
        if allowed is None:
            review = {
                "kind": "SubjectAccessReview",
                "apiVersion": _ACCESS_REVIEWS.api_version,
                "spec": {
                    "user": user.username,
                    "uid": user.uid,
                    "groups": user.groups,
                    "extra": user.extra,
                    **attributes,
                },
            }
            with self._limiter.hold_stream(tenant):
                answer = await _post_review(self._clients(tenant), _ACCESS_REVIEWS, review)
            status = msgspec.json.decode(answer, type=_Access).status
            allowed = status.allowed and not status.denied
            self._access_cache.put(key, allowed, seconds=ALLOWED_CACHE_SECONDS if allowed else DENIED_CACHE_SECONDS)
        return allowed


async def _post_token(client: NodeProxy, token: str) -> User | None:
    review = {"kind": "TokenReview", "apiVersion": _TOKEN_REVIEWS.api_version, "spec": {"token": token}}
    status = msgspec.json.decode(await _post_review(client, _TOKEN_REVIEWS, review), type=_Review).status
    is_known = status.authenticated and len(msgspec.json.encode(status.user)) <= _MAX_USER_BYTES
    return status.user if is_known else None


async def _post_review(client: NodeProxy, resource: Resource, review: object) -> bytes:
    return await client.request("POST", resource.path(), body=msgspec.json.encode(review), timeout=_TIMEOUT)


REVIEWS_PER_ADDRESS: Final = 2
REVIEWS_PER_TENANT: Final = 8
"""Concurrent reviews of unknown callers: by one tenant's API server, in total and for one address."""
CALLERS_PER_ADDRESS: Final = 16
CALLERS: Final = 128
"""Unknown callers that have a turn or wait for one: of one address at a tenant, and in total."""
WAIT_SECONDS: Final = 5.0


class ReviewTurns:
    """Turns by address first: callers of an address wait for each other, and addresses alternate."""

    def __init__(self) -> None:
        self._callers = StreamLimiter(CALLERS_PER_ADDRESS, total=CALLERS, what="reviews of tokens of unknown callers")
        self._slots: WeakValueDictionary[tuple[str, ...], asyncio.Semaphore] = WeakValueDictionary()
        """Slots of a tenant, and of an address at a tenant, while a caller holds them or waits for them."""

    @contextlib.asynccontextmanager
    async def take_turn(self, tenant: str, address: str) -> AsyncIterator[None]:
        """Run the block when a caller at an address has its turn. Raises TooManyStreamsError."""
        of_address = self._slots.setdefault((tenant, address), asyncio.Semaphore(REVIEWS_PER_ADDRESS))
        of_tenant = self._slots.setdefault((tenant,), asyncio.Semaphore(REVIEWS_PER_TENANT))
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._callers.hold_stream(f"{address} {tenant}"))
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await stack.enter_async_context(of_address)
                    await stack.enter_async_context(of_tenant)
            except TimeoutError as error:
                message = f"no review of the token within {WAIT_SECONDS:.0f} s, because others are waiting; try again"
                raise TooManyStreamsError(message) from error
            yield
