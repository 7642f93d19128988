"""Tenant templates: a directory each, with settings of the control plane and the initial objects of a tenant."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import yaml

from vkgateway.api.errors import InputError
from vkgateway.api.types import TenantPolicy
from vkgateway.kinds.pods.policy.admission import PolicyRules, pod_rules, pod_security_rules, service_rules
from vkgateway.kube import yamltext
from vkgateway.planes.plane import SERVICE_CIDR, ComponentName, Tuning
from vkgateway.planes.pod_settings import ContainerResources, PodSettings

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
    resources: ContainerResources = ContainerResources()

    def to_tuning(self) -> Tuning:
        flags = {name: value if value is None else _flag_text(value) for name, value in self.flags.items()}
        slack = self.timer_slack_milliseconds
        return Tuning(
            flags=flags,
            env={name: str(value) for name, value in self.env.items()},
            timer_slack=slack if slack is None else slack / 1000,
            resources=self.resources,
        )


class _Description(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    description: str
    service_cidr: str = SERVICE_CIDR
    components: dict[ComponentName, _Component] = {}
    pod: PodSettings = PodSettings()
    values: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFacts:
    """Facts about a tenant for a template's objects, as `tenant.name` and so on."""

    name: str
    template: str
    kubernetes_version: str
    address: str
    port: int
    cluster_domain: str
    policy: TenantPolicy = _DEFAULT_POLICY
    endpoint_host: str = ""
    """Host of the gateway's endpoint, which serves the virtual nodes and the resource metrics API."""
    endpoint_port: int = 0
    """Port of that endpoint; 0 if it changes at each start."""
    webhooks_url: str = ""
    """URL of the gateway's webhook for the tenant's API server; empty if it cannot or need not call it."""
    webhooks_ca: str = ""
    """CA of the gateway's endpoint (PEM, base64)."""

    @property
    def kubelet_ca(self) -> str:
        """CA of the virtual nodes' kubelet endpoint (PEM); the same server as the webhook's."""
        return base64.b64decode(self.webhooks_ca).decode()

    @property
    def pod_rules(self) -> PolicyRules:
        """The tenant's rules for pods, for an admission policy."""
        return pod_rules(self.policy)

    @property
    def pod_security_rules(self) -> PolicyRules | None:
        """Rules of the tenant's Pod Security level for namespaces whose labels set another; None if there are none."""
        return pod_security_rules(self.policy)

    @property
    def service_rules(self) -> PolicyRules | None:
        """The tenant's rules for types of Services, for an admission policy; None if there are none."""
        return service_rules(self.policy)

    @property
    def minor(self) -> int:
        """Minor release: 36 of 1.36.3."""
        return int(self.kubernetes_version.split(".")[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One kind of tenant, read from its directory."""

    name: str
    folder: Path
    description: str
    service_cidr: str
    tuning: Mapping[ComponentName, Tuning]
    values: Mapping[str, Any]
    pod: PodSettings = field(default_factory=PodSettings)

    def render_objects(self, tenant: TenantFacts) -> list[dict[str, Any]]:
        """Render the initial objects of `tenant`, in the order of file names.

        Raises:
            InputError: a file uses an undefined value, or renders to something that is not an object.
        """
        import jinja2  # slow to load, and needed for new tenants only

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
                raise InputError(f"template file {where} has an object without apiVersion, kind or metadata")
        return documents


@dataclass(frozen=True, slots=True)
class Templates:
    """The templates in a directory, one subdirectory each."""

    folder: Path = SHIPPED_FOLDER

    def list_names(self) -> list[str]:
        """Return the names of all templates, sorted."""
        return sorted(path.parent.name for path in self.folder.glob(f"*/{_FILE}"))

    def load_template(self, name: str) -> Template:
        """Read a template.

        Raises:
            InputError: the template does not exist (the hint lists those that do), or its file is invalid.
        """
        if name not in self.list_names():
            known = ", ".join(self.list_names()) or "none"
            raise InputError(f"template {name!r} does not exist in {self.folder}", hint=f"available: {known}")
        path = self.folder / name / _FILE
        try:
            found = msgspec.yaml.decode(path.read_bytes(), type=_Description)
            for component, written in found.components.items():
                written.resources.check(f"components.{component}.resources")
        except (msgspec.DecodeError, OSError, InputError) as error:
            raise InputError(f"template file {path} cannot be used: {error}") from error
        return Template(
            name=name,
            folder=path.parent,
            description=found.description,
            service_cidr=found.service_cidr,
            tuning={component: written.to_tuning() for component, written in found.components.items()},
            values=found.values,
            pod=found.pod,
        )


def _flag_text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
