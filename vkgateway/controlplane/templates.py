"""Tenant templates: a folder each, with the control plane's shape and the objects a tenant is born with."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import yaml

from vkgateway.controlplane.plane import SERVICE_CIDR, ComponentName, Tuning
from vkgateway.kube import yamltext
from vkgateway.model.api import TenantPolicy
from vkgateway.model.errors import InputError
from vkgateway.translate.admission import PolicyRules, pod_rules, pod_security_rules, service_rules

if TYPE_CHECKING:
    import jinja2

SHIPPED_FOLDER = Path(__file__).parent / "tenant_templates"

_DEFAULT_POLICY = TenantPolicy()

_FILE = "template.yaml"
_OBJECTS_FOLDER = "objects"
_SUFFIX = ".yaml.j2"


class _Component(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    flags: dict[str, str | int | bool | None] = {}
    env: dict[str, str | int] = {}
    timer_slack_milliseconds: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None

    def to_tuning(self) -> Tuning:
        flags = {name: value if value is None else _flag_text(value) for name, value in self.flags.items()}
        slack = self.timer_slack_milliseconds
        return Tuning(
            flags=flags,
            env={name: str(value) for name, value in self.env.items()},
            timer_slack=slack if slack is None else slack / 1000,
        )


class _Description(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    description: str
    service_cidr: str = SERVICE_CIDR
    components: dict[ComponentName, _Component] = {}
    values: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFacts:
    """What a template's objects may say of the tenant, as `tenant.name` and so on."""

    name: str
    template: str
    kubernetes_version: str
    address: str
    port: int
    cluster_domain: str
    policy: TenantPolicy = _DEFAULT_POLICY
    endpoint_host: str = ""
    """Where the gateway's endpoint listens, which virtual nodes and the resource metrics API have in common."""
    endpoint_port: int = 0
    """Its port; 0 where it is another one at each start."""
    webhooks_url: str = ""
    """Where the tenant's API server may ask the gateway as a webhook; empty where it cannot, or need not."""
    webhooks_ca: str = ""
    """The authority that vouches for that server: PEM, in base64."""

    @property
    def kubelet_ca(self) -> str:
        """The authority that vouches for the virtual nodes' kubelet endpoint, which is that server, too: PEM."""
        return base64.b64decode(self.webhooks_ca).decode()

    @property
    def pod_rules(self) -> PolicyRules:
        """The tenant's rules for pods, for an admission policy."""
        return pod_rules(self.policy)

    @property
    def pod_security_rules(self) -> PolicyRules | None:
        """The rules of the tenant's pod security level, for namespaces whose labels set another; None: no rules."""
        return pod_security_rules(self.policy)

    @property
    def service_rules(self) -> PolicyRules | None:
        """The tenant's rules for types of Services, for an admission policy; None: no rules."""
        return service_rules(self.policy)

    @property
    def minor(self) -> int:
        """The Kubernetes release's second number: 36 of 1.36.3."""
        return int(self.kubernetes_version.split(".")[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One kind of tenant, read from its folder."""

    name: str
    folder: Path
    description: str
    service_cidr: str
    tuning: Mapping[ComponentName, Tuning]
    values: Mapping[str, Any]

    def render_objects(self, tenant: TenantFacts) -> list[dict[str, Any]]:
        """Render the objects that `tenant` is born with, in the order of their file names.

        Raises:
            InputError: a file uses what is not defined, or renders to something that is no object.
        """
        import jinja2  # here, for it takes long to load, and is needed for new tenants only

        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(self.folder / _OBJECTS_FOLDER),
            undefined=jinja2.StrictUndefined,
            autoescape=False,  # noqa: S701 - the result is YAML, not HTML; values go through `tojson`
        )
        names = environment.list_templates(filter_func=lambda name: name.endswith(_SUFFIX))
        return [found for name in sorted(names) for found in self._render_file(environment, name, tenant)]

    def _render_file(self, environment: jinja2.Environment, name: str, tenant: TenantFacts) -> list[dict[str, Any]]:
        import jinja2

        where = f"{self.folder / _OBJECTS_FOLDER / name}"
        try:
            text = environment.get_template(name).render(tenant=tenant, values=self.values)
            documents = [document for document in yamltext.load_all(text) if document is not None]
        except (jinja2.TemplateError, yaml.YAMLError) as error:
            raise InputError(f"template file {where} cannot be used: {' '.join(str(error).split())}") from error
        for document in documents:
            if not isinstance(document, dict) or not {"apiVersion", "kind", "metadata"} <= document.keys():
                raise InputError(f"template file {where} holds something without apiVersion, kind or metadata")
        return documents


@dataclass(frozen=True, slots=True)
class Templates:
    """The templates in a folder, one sub-folder each."""

    folder: Path = SHIPPED_FOLDER

    def list_names(self) -> list[str]:
        """List the templates there are."""
        return sorted(path.parent.name for path in self.folder.glob(f"*/{_FILE}"))

    def load_template(self, name: str) -> Template:
        """Read a template.

        Raises:
            InputError: there is none of that name (the message lists those there are), or its file is wrong.
        """
        if name not in self.list_names():
            known = ", ".join(self.list_names()) or "none"
            raise InputError(f"template {name!r} does not exist in {self.folder}", hint=f"there is: {known}")
        path = self.folder / name / _FILE
        try:
            found = msgspec.yaml.decode(path.read_bytes(), type=_Description)
        except (msgspec.DecodeError, OSError) as error:
            raise InputError(f"template file {path} cannot be used: {error}") from error
        return Template(
            name=name,
            folder=path.parent,
            description=found.description,
            service_cidr=found.service_cidr,
            tuning={component: written.to_tuning() for component, written in found.components.items()},
            values=found.values,
        )


def _flag_text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
