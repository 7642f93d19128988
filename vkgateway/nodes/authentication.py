"""Authentication of clients: API servers by their certificates, all others by a token of their tenant."""

from __future__ import annotations

from typing import Final

import msgspec
import structlog

from vkgateway.api.errors import NotFoundError
from vkgateway.kube.errors import ApiError
from vkgateway.kube.tls_engine import TlsEngine
from vkgateway.nodes.call import Rejected
from vkgateway.nodes.http import Reply, Request
from vkgateway.nodes.identity import AdmittedTenants, FrontProxies, UnknownCaller, tenant_from_certificate
from vkgateway.nodes.routes import RequestTarget
from vkgateway.nodes.token_reviewer import TokenReviewer

_AGGREGATED_PATH: Final = ("apis",)
"""Prefix of the paths of aggregated APIs. An API server forwards users' requests with its front-proxy certificate, so
this certificate is valid for these paths only, and no other credential is."""

_log = structlog.get_logger(__name__)


class Authenticator:
    """Authentication of tenants. Without `token_reviewer`, only certificates are accepted."""

    def __init__(self, token_reviewer: TokenReviewer | None) -> None:
        self.admitted_tenants = AdmittedTenants()
        self.front_proxies = FrontProxies()
        self._token_reviewer = token_reviewer

    def forget_tenant(self, tenant: str) -> None:
        """Stop serving a tenant."""
        self.admitted_tenants.revoke_tenant(tenant)
        self.front_proxies.remove_authority(tenant)
        if self._token_reviewer is not None:
            self._token_reviewer.forget_tenant(tenant)

    def tenant_by_certificate(self, tls: TlsEngine | None) -> str:
        """Return the admitted tenant of the connection's certificate, or an empty string."""
        certificate = tls.peer_certificate() if tls is not None else None
        if tls is None or certificate is None:
            return ""
        if tenant := self.front_proxies.find_tenant(certificate):
            return tenant
        try:
            tenant = tenant_from_certificate(tls.peer_names())
            self.admitted_tenants.check_certificate(tenant, certificate)
        except UnknownCaller:
            return ""
        return tenant

    async def authenticate_request(
        self, tls: TlsEngine | None, request: Request, target: RequestTarget, *, client_address: str
    ) -> str:
        """Return the tenant of a request. Checked for each request, because the tenant may be revoked.

        Raises UnknownCaller, Rejected.
        """
        certificate = tls.peer_certificate() if tls is not None else None
        if tls is None or certificate is None:
            return await self._authenticate_token(request, target, client_address)
        aggregated = request.path[:1] == _AGGREGATED_PATH
        if tenant := self.front_proxies.find_tenant(certificate):
            if not aggregated:
                raise Rejected(Reply.from_text(404, f"only paths under /{_AGGREGATED_PATH[0]} are aggregated"))
            return tenant
        tenant = tenant_from_certificate(tls.peer_names())
        self.admitted_tenants.check_certificate(tenant, certificate)
        if aggregated:
            raise UnknownCaller(f"/{_AGGREGATED_PATH[0]} is for an API server's front proxy only")
        if target.tenant not in ("", tenant):
            raise UnknownCaller(f"the client certificate is not that of tenant {target.tenant[:63]!r}")
        return tenant

    async def _authenticate_token(self, request: Request, target: RequestTarget, client_address: str) -> str:
        """Return the tenant of a token. Only the API server of the tenant in the path reviews the token.

        A wrong tenant in the path is harmless: its API server does not know the token.
        """
        tenant, (scheme, _, token) = target.tenant, request.header("authorization").partition(" ")
        if self._token_reviewer is None or not tenant or scheme.lower() != "bearer":
            raise Rejected(
                Reply.from_text(401, "Unauthorized: a client certificate, or a token for /tenants/NAME/nodes/NAME")
            )
        if not self.admitted_tenants.is_admitted(tenant):
            raise Rejected(Reply.from_text(401, "Unauthorized"))
        try:
            user = await self._token_reviewer.review_token(tenant, token.strip(), address=client_address)
            if user is None:
                raise Rejected(Reply.from_text(401, "Unauthorized"))
            path = request.path[0] if request.path else ""
            if not await self._token_reviewer.can_read_node(tenant, user, node=target.node, path=path):
                message = f"Forbidden (user={user.username}, verb=get, resource=nodes, path={path[:64]})"
                raise Rejected(Reply.from_text(403, message))
        except (ApiError, NotFoundError, msgspec.DecodeError) as error:
            _log.warning("token review failed", tenant=tenant, error=str(error))
            raise Rejected(Reply.from_text(503, "the tenant's API server cannot review the token now")) from error
        return tenant
