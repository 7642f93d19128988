"""Who calls, and whether that is allowed: an API server by its certificate, anybody else by a token of its tenant."""

from __future__ import annotations

from typing import Final

import msgspec
import structlog

from vkgateway.kube.errors import ApiError
from vkgateway.kube.tlsbytes import Tls
from vkgateway.kubelet.call import Rejected
from vkgateway.kubelet.http import Reply, Request
from vkgateway.kubelet.identity import Admission, FrontProxies, Stranger, tenant_of
from vkgateway.kubelet.routes import Address
from vkgateway.kubelet.tokens import Tokens
from vkgateway.model.errors import NotFoundError

_AGGREGATED: Final = ("apis",)
"""How paths of aggregated APIs begin. What an API server asks there a user may have asked of it, whatever the path: so
its front proxy can ask for nothing else, and nobody else can ask for that."""

_log = structlog.get_logger(__name__)


class Callers:
    """Tells tenants apart; without `tokens` by certificates only."""

    def __init__(self, tokens: Tokens | None) -> None:
        self.admission = Admission()
        self.front_proxies = FrontProxies()
        self._tokens = tokens

    def forget(self, tenant: str) -> None:
        """Serve a tenant no longer."""
        self.admission.revoke(tenant)
        self.front_proxies.revoke(tenant)
        if self._tokens is not None:
            self._tokens.forget(tenant)

    def certified(self, tls: Tls | None) -> str:
        """The tenant that the connection's certificate stands for, if it is served now; empty otherwise."""
        certificate = tls.peer_certificate() if tls is not None else None
        if tls is None or certificate is None:
            return ""
        if tenant := self.front_proxies.tenant(certificate):
            return tenant
        try:
            tenant = tenant_of(tls.peer_names())
            self.admission.check(tenant, certificate)
        except Stranger:
            return ""
        return tenant

    async def tenant(self, tls: Tls | None, request: Request, address: Address) -> str:
        """The tenant that calls, told anew for every request: it may have been revoked since.

        Raises Stranger, Rejected.
        """
        certificate = tls.peer_certificate() if tls is not None else None
        if tls is None or certificate is None:
            return await self._by_token(request, address)
        aggregated = request.path[:1] == _AGGREGATED
        if tenant := self.front_proxies.tenant(certificate):
            if not aggregated:
                raise Rejected(Reply.text(404, f"nothing is aggregated here but /{_AGGREGATED[0]}"))
            return tenant
        tenant = tenant_of(tls.peer_names())
        self.admission.check(tenant, certificate)
        if aggregated:
            raise Stranger(f"/{_AGGREGATED[0]} is for an API server's front proxy only")
        if address.tenant not in ("", tenant):
            raise Stranger(f"the client certificate is not that of tenant {address.tenant[:63]!r}")
        return tenant

    async def _by_token(self, request: Request, address: Address) -> str:
        """The path says whose token it is; that tenant's API server alone is asked, so a lie leads nowhere."""
        tenant, (scheme, _, token) = address.tenant, request.header("authorization").partition(" ")
        if self._tokens is None or not tenant or scheme.lower() != "bearer":
            raise Rejected(
                Reply.text(401, "Unauthorized: a client certificate, or a token for /tenants/NAME/nodes/NAME")
            )
        if not self.admission.admitted(tenant):
            raise Rejected(Reply.text(401, "Unauthorized"))
        try:
            user = await self._tokens.user(tenant, token.strip())
            if user is None:
                raise Rejected(Reply.text(401, "Unauthorized"))
            path = request.path[0] if request.path else ""
            if not await self._tokens.may(tenant, user, node=address.node, path=path):
                told = f"Forbidden (user={user.username}, verb=get, resource=nodes, path={path[:64]})"
                raise Rejected(Reply.text(403, told))
        except (ApiError, NotFoundError, msgspec.DecodeError) as error:
            _log.warning("a token could not be reviewed", tenant=tenant, error=str(error))
            raise Rejected(Reply.text(503, "the tenant's API server cannot say now who this is")) from error
        return tenant
