"""Kubeconfig files: reading them, writing them and merging into the user's own."""

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
from typing import Any

import yaml

from vkgateway.kube import bearer, kubeconfig_checks, kubeconfig_unsupported, tls, yamltext
from vkgateway.model.errors import InputError

Document = dict[str, Any]

_SERVICE_ACCOUNT_DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What one context says: where the server is, how to trust it and how to prove oneself. PEM texts as
    bytes.
    """

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
        """Whether both lead to the same server, whatever they prove themselves by.

        By another authority it may be another one, at the same address.
        """
        ours, theirs = ((one.server, one.tls_server_name, one.ca, one.insecure) for one in (self, other))
        return ours == theirs

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS identity; None where the server is reached by plain HTTP."""
        if self.server.startswith("http://"):
            return None
        return tls.client_context(ca=self.ca, cert=self.cert, key=self.key, insecure=self.insecure)

    def token_source(self) -> bearer.TokenSource | None:
        """What to await for a bearer token before each request; None where none is used."""
        if self.exec_plugin is not None:
            return bearer.CachingTokenSource(partial(bearer.run_exec_plugin, self.exec_plugin, context=self.context))
        if self.token_file is not None:
            return bearer.CachingTokenSource(partial(bearer.read_token_file, self.token_file))
        if self.token:
            return partial(bearer.static_token, self.token)
        return None


class CredentialReloader:
    """Reads a connection's credentials again: those of long-lived clients run out, and are written anew in place.

    `read` reads it whole. Gives None where it says the same as before, or leads to another server.
    """

    def __init__(self, known: ClientConfig, read: Callable[[], ClientConfig]) -> None:
        self._known = known
        self._read = read

    def __call__(self) -> tuple[ssl.SSLContext | None, bearer.TokenSource | None] | None:
        """See `transport.CredentialSource`. Raises InputError."""
        found = self._read()
        if found == self._known or found.server != self._known.server:
            return None
        credentials = found.ssl_context(), found.token_source()
        self._known = found
        return credentials


@dataclass(frozen=True, kw_only=True)
class Kubeconfig:
    """A kubeconfig document and the file it came from, which relative paths in it start from."""

    document: Document = field(repr=False)
    path: Path

    @property
    def current_context(self) -> str:
        """The context that commands use unless told otherwise; empty if there is none."""
        return str(self.document.get("current-context") or "")

    def client_config(self, context: str | None = None) -> ClientConfig:
        """What a context says, files read. Raises InputError that names what is missing and where."""
        name = context or self.current_context
        if not name:
            raise InputError(f"kubeconfig {self.path} has no current-context", hint="name a context")
        chosen = self._find_entry("contexts", name)
        cluster = self._find_entry("clusters", str(chosen.get("cluster", "")))
        user = self._find_entry("users", str(chosen["user"])) if chosen.get("user") else {}
        if not cluster.get("server"):
            raise InputError(f"kubeconfig {self.path}: cluster {chosen.get('cluster')!r} has no server")
        kubeconfig_unsupported.check_cluster(
            cluster, where=f"kubeconfig {self.path}: cluster {chosen.get('cluster')!r}"
        )
        kubeconfig_unsupported.check_user(user, where=f"kubeconfig {self.path}: user {chosen.get('user')!r}")
        cert, key = self._read_pem(user, "client-certificate"), self._read_pem(user, "client-key")
        if (cert is None) != (key is None):
            half, other = ("client-certificate", "client-key")[:: -1 if cert is None else 1]
            raise InputError(f"kubeconfig {self.path}: user {chosen['user']!r} has a {half} and no {other}")
        return ClientConfig(
            context=name,
            server=str(cluster["server"]).rstrip("/"),
            ca=self._read_pem(cluster, "certificate-authority"),
            cert=cert,
            key=key,
            token=str(user.get("token") or ""),
            token_file=self._resolve_path(user["tokenFile"]) if user.get("tokenFile") else None,
            namespace=str(chosen.get("namespace") or "default"),
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

    def _resolve_path(self, named: object) -> Path:
        return self.path.parent / Path(str(named)).expanduser()


def default_path() -> Path:
    """Where kubectl looks: the first file of KUBECONFIG, else ~/.kube/config."""
    named = next(filter(None, os.environ.get("KUBECONFIG", "").split(os.pathsep)), None)
    return Path(named) if named else Path.home() / ".kube" / "config"


def load(path: Path | str) -> Kubeconfig:
    """Read a kubeconfig file. Raises InputError where it is missing or no kubeconfig."""
    path = Path(path).expanduser()
    try:
        return Kubeconfig(document=parse(path.read_text(), where=str(path)), path=path.absolute())
    except OSError as error:
        raise InputError(f"kubeconfig {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"kubeconfig {path} is not a text file") from error


def parse(text: str, *, where: str = "text") -> Document:
    """A kubeconfig document from YAML or JSON; `where` names it in errors. Raises InputError."""
    try:
        document = yamltext.load(text)
    except yaml.YAMLError as error:
        raise InputError(f"kubeconfig {where} is not YAML: {' '.join(str(error).split())}") from error
    document = {} if document is None else document  # an empty file is an empty kubeconfig, for kubectl too
    if not isinstance(document, dict) or not all(
        _is_valid_section(document, kind) for kind in ("cluster", "user", "context")
    ):
        raise InputError(f"{where} is not a kubeconfig: clusters, users and contexts are lists of named entries there")
    return document


def _is_valid_section(document: Document, kind: str) -> bool:
    """Whether the section is a list, if it is there, of names with what is said of each."""
    entries = document.get(f"{kind}s") or []
    return isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get(kind) or {}, dict)
        for entry in entries
    )


def in_cluster_config(directory: Path = _SERVICE_ACCOUNT_DIRECTORY) -> ClientConfig:
    """The connection that Kubernetes gives to every pod with a service account. Raises InputError outside a
    pod.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (directory / "token").exists():
        raise InputError(
            "this process does not run in a Kubernetes pod with a service account", hint="name a kubeconfig file"
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
    """A kubeconfig with one cluster, user and context, all inline; PEM texts go in as they are.

    The cluster and context are called `name`, the user `user` or else the same.
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
    """The YAML text of a kubeconfig."""
    return yaml.safe_dump(document, sort_keys=False)


def write_file(path: Path | str, document: Document) -> None:
    """Write a kubeconfig, readable by its owner alone, at once or not at all. Raises InputError."""
    path = Path(path).expanduser()
    # A link (to a file kept elsewhere) stays a link: what it points to is replaced.
    path = Path(os.path.realpath(path))
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"kubeconfig {path} cannot be written: it is no ordinary file")
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
    """Give the new file to whom the old one belongs: root may write a user's, who is to be able to read it after."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        old = path.stat()
        os.fchown(descriptor, old.st_uid, old.st_gid)


def replace_file(path: Path | str, document: Document) -> None:
    """Write a kubeconfig in place of an older one of the same clusters, or where there is none.

    Raises InputError, or ConflictError where others would be lost; the file is untouched then.
    """
    path = Path(path).expanduser()
    if path.is_file():
        kubeconfig_checks.check_replacement(load(path).document, document, where=path)
    write_file(path, document)


def merge_documents(into: Document, added: Document, *, switch: bool = True) -> Document:
    """The document with the added clusters, users and contexts; those of the same name are replaced.

    With `switch` the added document's current context becomes the current one. Nothing else of `into`
    changes.
    """
    result: Document = {"apiVersion": "v1", "kind": "Config"} | into
    for section in ("clusters", "users", "contexts"):
        new = {entry["name"]: entry for entry in added.get(section) or []}
        kept = [new.pop(entry.get("name"), entry) for entry in into.get(section) or []]
        result[section] = kept + list(new.values())
    if switch or not into.get("current-context"):
        result["current-context"] = added.get("current-context", "")
    return result


def merge_into_file(path: Path | str, added: Document, *, switch: bool = True) -> None:
    """Add a context to a kubeconfig file, which is made if it is not there.

    Raises InputError, or ConflictError where a name is another's there; the file is untouched then.
    """
    path = Path(path).expanduser()
    into = load(path).document if path.exists() else {}
    kubeconfig_checks.check_merge(into, added, where=path)
    write_file(path, merge_documents(into, added, switch=switch))


def remove_context(document: Document, context: str) -> Document:
    """The document without a context and without the cluster and user that only this context used."""
    result = dict(document)
    gone = [entry for entry in document.get("contexts") or [] if entry.get("name") == context]
    kept = [entry for entry in document.get("contexts") or [] if entry.get("name") != context]
    result["contexts"] = kept
    for section, kind in (("clusters", "cluster"), ("users", "user")):
        lost = {entry["context"].get(kind) for entry in gone} - {entry["context"].get(kind) for entry in kept}
        result[section] = [entry for entry in document.get(section) or [] if entry.get("name") not in lost]
    if document.get("current-context") == context:
        result["current-context"] = ""
    return result


def _encode_pem(pem: bytes | str) -> str:
    return base64.b64encode(pem.encode() if isinstance(pem, str) else pem).decode()
