"""Access to the page: a TokenReview says who the reader is, and a SubjectAccessReview whether it may read.

Operators sign in with a token of the management cluster, tenants with one of their own API server. In both, the right
is `get` on the virtual resource `pages.vkgateway.io` with the name `platform` or `tenant`. No object of it exists.
A reader with the right in some namespaces of a tenant sees these only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec
import structlog

from vkgateway.api.errors import NotFoundError
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.errors import ApiError
from vkgateway.nodes.http import Request
from vkgateway.nodes.limits import TooManyStreamsError
from vkgateway.nodes.token_reviewer import TokenReviewer, User
from vkgateway.nodes.ttl_cache import TtlCache
from vkgateway.page.cookies import KEY_HEADER, CookieSealer, Credentials, read_cookie
from vkgateway.page.documents import Audience, Problem, Scope

API_GROUP: Final = "vkgateway.io"
RESOURCE: Final = "pages"
_SIGN_IN: Final = Problem(message="You are not signed in.", hint="Sign in with a token, or run `vkgateway ui`.")
_NOT_SERVED: Final = Problem(message="The tenant is not served now.", hint="The page tries again.")
_log = structlog.get_logger(__name__)


class RefusedError(Exception):
    """A reader is refused. `status` is the HTTP status."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(problem.message)
        self.status = status
        self.problem = problem


class _NotServedError(RefusedError):
    """The tenant of a session is not served."""


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """Reader of the page. `tenant` is empty for operators of the platform."""

    user: str
    tenant: str
    credentials: Credentials
    namespaces: tuple[str, ...] | None = None
    """Namespaces of the tenant that it may see; None: all."""

    @property
    def audience(self) -> Audience:
        """Readers who see the same."""
        return Audience(tenant=self.tenant, namespaces=self.namespaces)

    @property
    def scope(self) -> Scope:
        """Kind of document that the reader sees."""
        return "tenant" if self.tenant else "platform"


class PageAccess:
    """Access of readers. `reviewer` reviews tokens of tenants, and of the management cluster for an empty name.

    `secure`: the page is served over TLS.
    """

    def __init__(self, reviewer: TokenReviewer, sealer: CookieSealer, *, secure: bool) -> None:
        self._reviewer = reviewer
        self._sealer = sealer
        self._secure = secure
        self._namespaces = NamespaceFinder(reviewer, self._may_read)

    async def identify(self, request: Request, *, address: str) -> Reader:
        """Return the reader of a request from an address, by its token or its cookie. Raises RefusedError."""
        credentials = self._credentials(request)
        if credentials is None:
            raise RefusedError(401, _SIGN_IN)
        return await (self.check(credentials) if credentials.until else self.sign_in(credentials, address=address))

    async def sign_in(self, credentials: Credentials, *, address: str) -> Reader:
        """Return the reader with new credentials, from an address. Raises RefusedError."""
        try:
            return await self._review(credentials, address=address)
        except _NotServedError:
            # The same answer as for an invalid token: it must not reveal which tenants exist.
            raise RefusedError(401, _invalid_token(credentials.tenant)) from None

    async def check(self, credentials: Credentials) -> Reader:
        """Return the reader with the credentials of a session. Raises RefusedError.

        The session of a tenant that is not served now, for example while the gateway starts, is not over.
        """
        return await self._review(credentials, address=None)

    async def _review(self, credentials: Credentials, *, address: str | None) -> Reader:
        """Return the reader with credentials from an address; None: from a session."""
        tenant = credentials.tenant
        try:
            user = await self._reviewer.review_token(tenant, credentials.token, address=address)
            if user is None:
                raise RefusedError(401, _invalid_token(tenant))
            namespaces = None
            if not await self._may_read(tenant, user):
                namespaces = await self._namespaces.find(tenant, user) if tenant else ()
                if not namespaces:
                    raise RefusedError(403, _forbidden(tenant, user))
        except NotFoundError:
            raise _NotServedError(503, _NOT_SERVED) from None
        except TooManyStreamsError as error:
            raise RefusedError(429, Problem(message=str(error), hint="Retry in a few seconds.")) from error
        except (ApiError, TimeoutError, msgspec.DecodeError) as error:
            _log.warning("token review failed", tenant=tenant, error=str(error))
            where = "the tenant's API server" if tenant else "the management cluster"
            problem = Problem(message=f"{where} cannot review the token now", hint="Retry in a few seconds.")
            raise RefusedError(503, problem) from error
        return Reader(user=user.username, tenant=tenant, credentials=credentials, namespaces=namespaces)

    def _credentials(self, request: Request) -> Credentials | None:
        scheme, _, token = request.header("authorization").partition(" ")
        if scheme.lower() == "bearer":
            tenant = next((value for key, value in request.query if key == "tenant"), "")
            return Credentials(token=token.strip(), tenant=tenant)
        cookie = read_cookie(request.header("cookie"), secure=self._secure)
        return self._sealer.open(cookie, key=request.header(KEY_HEADER))

    async def _may_read(self, tenant: str, user: User, namespace: str = "") -> bool:
        name: Scope = "tenant" if tenant else "platform"
        return await self._reviewer.can_get_object(
            tenant, user, group=API_GROUP, resource=RESOURCE, name=name, namespace=namespace
        )


def _invalid_token(tenant: str) -> Problem:
    if tenant:
        hint = (
            "Check the tenant's name. A token of a service account: "
            "`kubectl --kubeconfig TENANT.kubeconfig create token NAME`."
        )
        return Problem(message="The tenant does not know this token, or it has expired.", hint=hint)
    return Problem(
        message="The management cluster does not know this token, or it has expired.",
        hint="For the page of a tenant, give the tenant's name. Operators of the platform: `vkgateway ui`.",
    )


def _forbidden(tenant: str, user: User) -> Problem:
    name = "tenant" if tenant else "platform"
    right = f"get {RESOURCE}.{API_GROUP}/{name}"
    if tenant:
        hint = "Grant it with a ClusterRoleBinding or, for one namespace, a RoleBinding to the ClusterRole view."
        return Problem(message=f"{user.username} may not {right} in any namespace.", hint=hint)
    hint = "Grant it with a ClusterRoleBinding to the ClusterRole vkgateway-state-reader."
    return Problem(message=f"{user.username} may not {right}.", hint=hint)


MOST_NAMESPACES: Final = 200
"""Namespaces of a tenant, by name, that are asked for. Each costs its API server a review."""
FOUND_SECONDS: Final = 300.0
"""Time after which namespaces to which the reader has got a right are found."""
NONE_SECONDS: Final = 30.0
"""Shortest time between two searches for a reader who may see no namespace."""
_SEARCH_SECONDS: Final = 10.0
_MOST_READERS: Final = 64

_Key = tuple[str, str]
MayRead = Callable[[str, User, str], Awaitable[bool]]
"""Returns whether a user of a tenant may see a namespace."""


class NamespaceFinder:
    """Search for the namespaces that users may see.

    Kubernetes has no request for the namespaces of a user. So the gateway asks for each namespace, up to a limit, and
    remembers the answer. It asks again for the found namespaces with each request, through the cache of the reviewer.
    """

    def __init__(self, reviewer: TokenReviewer, may_read: MayRead, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._reviewer = reviewer
        self._may_read = may_read
        self._found = TtlCache(clock, most=_MOST_READERS)
        self._searching: dict[str, asyncio.Lock] = {}

    async def find(self, tenant: str, user: User) -> tuple[str, ...]:
        """Return the names of the namespaces that a user may see now, in order. Raises ApiError and TimeoutError."""
        key = tenant, user.digest
        known: tuple[str, ...] | None = self._found.get(key)
        if known is None:
            known = await self._search(key, user)
        return await self._allowed(tenant, user, known)

    async def _search(self, key: _Key, user: User) -> tuple[str, ...]:
        """Ask for each namespace, for one user of a tenant at a time."""
        tenant = key[0]
        lock = self._searching.setdefault(tenant, asyncio.Lock())
        try:
            async with asyncio.timeout(_SEARCH_SECONDS), lock:
                known: tuple[str, ...] | None = self._found.get(key)
                if known is not None:
                    return known
                every = await self._reviewer.list_namespaces(tenant, most=MOST_NAMESPACES)
                found = await self._allowed(tenant, user, every)
        finally:
            if not lock.locked():
                self._searching.pop(tenant, None)
        self._found.put(key, found, seconds=FOUND_SECONDS if found else NONE_SECONDS)
        return found

    async def _allowed(self, tenant: str, user: User, names: Iterable[str]) -> tuple[str, ...]:
        return tuple([name for name in names if await self._may_read(tenant, user, name)])
