"""Reading, writing and merging of kubeconfig files."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from vkgateway.api.errors import InputError
from vkgateway.kube import bearer, kubeconfig_checks, tls, yamltext

Document = dict[str, Any]

_SERVICE_ACCOUNT_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Server and credentials of one context. PEM texts are bytes."""

    context: str
    server: str
    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    namespace: str = "default"
    tls_server_name: str = ""
    insecure: bool = False
    exec_plugin: Mapping[str, Any] | None = field(default=None, repr=False)

    def is_same_server(self, other: ClientConfig) -> bool:
        """Return whether both configurations have the same server, regardless of the credentials.

        A different certificate authority may mean a different server at the same address.
        """
        servers = [(config.server, config.tls_server_name, config.ca, config.insecure) for config in (self, other)]
        return servers[0] == servers[1]

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings, or None for plain HTTP."""
        if self.server.startswith("http://"):
            return None
        return tls.client_context(ca=self.ca, cert=self.cert, key=self.key, insecure=self.insecure)

    def token_source(self) -> bearer.TokenSource | None:
        """Return the source of bearer tokens, or None."""
        if self.exec_plugin is not None:
            return bearer.CachingTokenSource(partial(bearer.run_exec_plugin, self.exec_plugin, context=self.context))
        if self.token_file is not None:
            return bearer.CachingTokenSource(partial(bearer.read_token_file, self.token_file))
        if self.token:
            return partial(bearer.static_token, self.token)
        return None


class CredentialReloader:
    """Source of renewed credentials: other programs replace expiring credentials in place.

    `read` reads the current configuration. A call returns None if nothing changed or if the server changed.
    """

    def __init__(self, current: ClientConfig, read: Callable[[], ClientConfig]) -> None:
        self._current = current
        self._read = read

    def __call__(self) -> tuple[ssl.SSLContext | None, bearer.TokenSource | None] | None:
        """Return changed credentials; see `transport.CredentialSource`. Raises InputError."""
        config = self._read()
        if config == self._current or config.server != self._current.server:
            return None
        credentials = config.ssl_context(), config.token_source()
        self._current = config
        return credentials


@dataclass(frozen=True, kw_only=True)
class Kubeconfig:
    """A kubeconfig document and its file. Relative paths in the document start from the file's folder."""

    document: Document = field(repr=False)
    path: Path

    @property
    def current_context(self) -> str:
        """The default context of commands. Empty if the document has none."""
        return str(self.document.get("current-context") or "")

    def client_config(self, context: str | None = None) -> ClientConfig:
        """Return the configuration of a context, with the content of its files. Raises InputError."""
        name = context or self.current_context
        if not name:
            raise InputError(f"kubeconfig {self.path} has no current-context", hint="name a context")
        entry = self._find_entry("contexts", name)
        cluster = self._find_entry("clusters", str(entry.get("cluster", "")))
        user = self._find_entry("users", str(entry["user"])) if entry.get("user") else {}
        if not cluster.get("server"):
            raise InputError(f"kubeconfig {self.path}: cluster {entry.get('cluster')!r} has no server")
        check_cluster(cluster, where=f"kubeconfig {self.path}: cluster {entry.get('cluster')!r}")
        check_user(user, where=f"kubeconfig {self.path}: user {entry.get('user')!r}")
        cert, key = self._read_pem(user, "client-certificate"), self._read_pem(user, "client-key")
        if (cert is None) != (key is None):
            present, missing = ("client-certificate", "client-key")[:: -1 if cert is None else 1]
            raise InputError(f"kubeconfig {self.path}: user {entry['user']!r} has a {present} and no {missing}")
        return ClientConfig(
            context=name,
            server=str(cluster["server"]).rstrip("/"),
            ca=self._read_pem(cluster, "certificate-authority"),
            cert=cert,
            key=key,
            token=str(user.get("token") or ""),
            token_file=self._resolve_path(user["tokenFile"]) if user.get("tokenFile") else None,
            namespace=str(entry.get("namespace") or "default"),
            tls_server_name=str(cluster.get("tls-server-name") or ""),
            insecure=bool(cluster.get("insecure-skip-tls-verify")),
            exec_plugin=user.get("exec"),
        )

    def _find_entry(self, section: str, name: str) -> Document:
        kind = section.removesuffix("s")
        for entry in self.document.get(section) or []:
            if entry.get("name") == name:
                return dict(entry.get(kind) or {})
        known = ", ".join(sorted(str(entry.get("name")) for entry in self.document.get(section) or [])) or "none"
        raise InputError(f"kubeconfig {self.path} has no {kind} {name!r}; it has: {known}")

    def _read_pem(self, entry: Document, key: str) -> bytes | None:
        if entry.get(f"{key}-data"):
            try:
                return base64.b64decode(entry[f"{key}-data"], validate=True)
            except (binascii.Error, ValueError, TypeError) as error:
                raise InputError(f"kubeconfig {self.path}: {key}-data is not base64") from error
        if entry.get(key):
            path = self._resolve_path(entry[key])
            try:
                return path.read_bytes()
            except OSError as error:
                raise InputError(f"kubeconfig {self.path}: {key} {path} cannot be read: {error.strerror}") from error
        return None

    def _resolve_path(self, path: object) -> Path:
        return self.path.parent / Path(str(path)).expanduser()


def default_path() -> Path:
    """Return kubectl's default path: the first file of KUBECONFIG, else ~/.kube/config."""
    first = next(filter(None, os.environ.get("KUBECONFIG", "").split(os.pathsep)), None)
    return Path(first) if first else Path.home() / ".kube" / "config"


def load(path: Path | str) -> Kubeconfig:
    """Read a kubeconfig file. Raises InputError if the file is missing or not a kubeconfig."""
    path = Path(path).expanduser()
    try:
        return Kubeconfig(document=parse(path.read_text(), where=str(path)), path=path.absolute())
    except OSError as error:
        raise InputError(f"kubeconfig {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"kubeconfig {path} is not a text file") from error


def parse(text: str, *, where: str = "text") -> Document:
    """Return the kubeconfig document of a YAML or JSON text. `where` names the text in errors. Raises InputError."""
    try:
        document = yamltext.load(text)
    except yaml.YAMLError as error:
        raise InputError(f"kubeconfig {where} is not YAML: {' '.join(str(error).split())}") from error
    document = {} if document is None else document  # an empty file is an empty kubeconfig, like in kubectl
    if not isinstance(document, dict) or not all(
        _is_valid_section(document, kind) for kind in ("cluster", "user", "context")
    ):
        raise InputError(f"{where} is not a kubeconfig: clusters, users and contexts must be lists of named entries")
    return document


def _is_valid_section(document: Document, kind: str) -> bool:
    """Return whether a section is absent or a list of named entries."""
    entries = document.get(f"{kind}s") or []
    return isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get(kind) or {}, dict)
        for entry in entries
    )


def has_service_account(directory: Path = _SERVICE_ACCOUNT_DIRECTORY) -> bool:
    """Return whether this process runs in a pod with a service account."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (directory / "token").exists()


def in_cluster_config(directory: Path = _SERVICE_ACCOUNT_DIRECTORY) -> ClientConfig:
    """Return the configuration of a pod with a service account. Raises InputError outside a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not has_service_account(directory):
        raise InputError(
            "this process does not run in a Kubernetes pod with a service account", hint="specify a kubeconfig file"
        )
    authority = directory / "ca.crt"
    try:
        ca = authority.read_bytes()
    except OSError as error:
        raise InputError(f"the service account's {authority} cannot be read: {error.strerror}") from error
    return ClientConfig(
        context="in-cluster",
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca=ca,
        token_file=directory / "token",
    )


def build_document(
    name: str,
    *,
    server: str,
    ca: bytes | str,
    cert: bytes | str | None = None,
    key: bytes | str | None = None,
    token: str = "",
    user: str = "",
    namespace: str = "",
) -> Document:
    """Return a kubeconfig with one cluster, user and context, and the PEM texts inline.

    `name` is the name of the cluster and the context, and of the user unless `user` is given.
    """
    credentials: Document = {}
    if cert is not None and key is not None:
        credentials = {"client-certificate-data": _encode_pem(cert), "client-key-data": _encode_pem(key)}
    if token:
        credentials["token"] = token
    context = {"cluster": name, "user": user or name}
    if namespace:
        context["namespace"] = namespace
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": _encode_pem(ca)}}],
        "users": [{"name": user or name, "user": credentials}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }


def dump(document: Document) -> str:
    """Return the YAML text of a kubeconfig."""
    return yaml.safe_dump(document, sort_keys=False)


def write_file(path: Path | str, document: Document) -> None:
    """Write a kubeconfig atomically, readable only by its owner. Raises InputError."""
    path = Path(path).expanduser()
    # A symbolic link stays a link: the file that it points to is replaced.
    path = Path(os.path.realpath(path))
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"kubeconfig {path} cannot be written: it is not a regular file")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w") as file:
                _preserve_owner(file.fileno(), path)
                file.write(dump(document))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"kubeconfig {path} cannot be written: {error.strerror}") from error


def _preserve_owner(descriptor: int, path: Path) -> None:
    """Give the new file the owner of the old one: after root writes a user's file, the user must be able to read it."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        old = path.stat()
        os.fchown(descriptor, old.st_uid, old.st_gid)


def replace_file(path: Path | str, document: Document) -> None:
    """Write a kubeconfig to a new file, or replace an older version with the same clusters.

    Raises InputError, or ConflictError if other clusters would be lost. An error leaves the file unchanged.
    """
    path = Path(path).expanduser()
    if path.is_file():
        kubeconfig_checks.check_replacement(load(path).document, document, where=path)
    write_file(path, document)


def merge_documents(into: Document, added: Document, *, switch: bool = True) -> Document:
    """Return the document with the added clusters, users and contexts, which replace entries of the same name.

    With `switch`, the result gets the current context of the added document.
    """
    result: Document = {"apiVersion": "v1", "kind": "Config"} | into
    for section in ("clusters", "users", "contexts"):
        new = {entry["name"]: entry for entry in added.get(section) or []}
        updated = [new.pop(entry.get("name"), entry) for entry in into.get(section) or []]
        result[section] = updated + list(new.values())
    if switch or not into.get("current-context"):
        result["current-context"] = added.get("current-context", "")
    return result


def merge_into_file(path: Path | str, added: Document, *, switch: bool = True) -> None:
    """Add a context to a kubeconfig file, and create the file if necessary.

    Raises InputError, or ConflictError if an entry of another cluster has the name. An error leaves the file unchanged.
    """
    path = Path(path).expanduser()
    into = load(path).document if path.exists() else {}
    kubeconfig_checks.check_merge(into, added, where=path)
    write_file(path, merge_documents(into, added, switch=switch))


def _encode_pem(pem: bytes | str) -> str:
    return base64.b64encode(pem.encode() if isinstance(pem, str) else pem).decode()


_Explanation = tuple[str, str]
"""The reason, and a remedy."""

_REMOVED: Final[_Explanation] = ("which Kubernetes has removed", "use an exec plugin, a token or a client certificate")
_NO_IMPERSONATION: Final[_Explanation] = (
    "but vkgateway does not support impersonation",
    "remove the field to act as the user itself, or use credentials of the impersonated user",
)
_UNSUPPORTED_CLUSTER_FIELDS: Final[Mapping[str, _Explanation]] = {
    "proxy-url": ("but vkgateway does not support proxies", "use a server that is reachable without a proxy")
}
_UNSUPPORTED_USER_FIELDS: Final[Mapping[str, _Explanation]] = {
    "auth-provider": _REMOVED,
    "username": _REMOVED,
    "password": _REMOVED,
    "as": _NO_IMPERSONATION,
    "as-uid": _NO_IMPERSONATION,
    "as-groups": _NO_IMPERSONATION,
    "as-user-extra": _NO_IMPERSONATION,
}


def check_cluster(entry: Mapping[str, Any], *, where: str) -> None:
    """Raise InputError for an unsupported field of a cluster. `where` names the cluster."""
    _check_fields(entry, _UNSUPPORTED_CLUSTER_FIELDS, where=where)


def check_user(entry: Mapping[str, Any], *, where: str) -> None:
    """Raise InputError for an unsupported field of a user. `where` names the user."""
    _check_fields(entry, _UNSUPPORTED_USER_FIELDS, where=where)


def _check_fields(entry: Mapping[str, Any], unsupported: Mapping[str, _Explanation], *, where: str) -> None:
    for key, (reason, hint) in unsupported.items():
        if entry.get(key) not in (None, ""):
            raise InputError(f"{where} has {key}, {reason}", hint=hint)
