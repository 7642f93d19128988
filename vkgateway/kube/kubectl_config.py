"""The kubeconfig of a command as kubectl reads it: several files, and choices from the command line.

The rules are those of client-go's loader (https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/):
`--kubeconfig` names the only file. Otherwise the files of KUBECONFIG are merged, and without it ~/.kube/config is read.
The first file that has an entry or a current context wins. Relative paths start from the folder of their file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from vkgateway.api.errors import InputError
from vkgateway.kube import kubeconfig
from vkgateway.kube.kubeconfig import ClientConfig, Document

_SECTIONS: Final = ("clusters", "users", "contexts")
_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "clusters": ("certificate-authority",),
    "users": ("client-certificate", "client-key", "tokenFile"),
}
"""Fields with the path of a file, by section."""
_FROM_OPTIONS: Final = "the context from the options"
"""Name of a context that only the options --cluster and --user describe."""
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChoice:
    """Options of the command line; empty: as the kubeconfig says."""

    kubeconfig: Path | None = None
    context: str = ""
    cluster: str = ""
    user: str = ""


def load_client_config(choice: ConfigChoice) -> ClientConfig:
    """Return server, credentials and namespace of the chosen context. Raises InputError.

    Without any configuration, a process in a pod uses the service account of the pod, like kubectl.
    """
    files = config_files(choice.kubeconfig)
    document = merge_files(files)
    if not any(document.get(section) for section in _SECTIONS):
        if choice == ConfigChoice() and kubeconfig.has_service_account():
            return replace(kubeconfig.in_cluster_config(), namespace=_pod_namespace())
        names = ", ".join(map(str, files))
        raise InputError(f"no cluster is configured in {names}", hint="Set --kubeconfig FILE, or KUBECONFIG.")
    where = Path(os.pathsep.join(map(str, files)))
    return kubeconfig.Kubeconfig(document=choose_context(document, choice), path=where).client_config()


def config_files(chosen: Path | None) -> list[Path]:
    """Return the files to merge, which exist. Raises InputError if the chosen file does not exist."""
    if chosen is not None:
        file = chosen.expanduser()
        if not file.exists():
            raise InputError(f"kubeconfig {file} does not exist", hint="Check --kubeconfig.")
        return [file]
    from_environment = [Path(name) for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    candidates = list(dict.fromkeys(from_environment)) or [kubeconfig.default_path()]
    return [file for file in candidates if file.exists()] or candidates


def merge_files(files: Sequence[Path]) -> Document:
    """Return the merged document of the existing files, with absolute paths. Raises InputError."""
    merged: Document = {}
    for file in files:
        if file.exists():
            document = absolute_paths(kubeconfig.load(file).document, folder=file.absolute().parent)
            merged = merge(merged, document)
    return merged


def merge(first: Document, second: Document) -> Document:
    """Return both documents as one. Entries and the current context of `first` win."""
    result: Document = {}
    for section in _SECTIONS:
        entries = {entry["name"]: entry for entry in (*(second.get(section) or ()), *(first.get(section) or ()))}
        result[section] = list(entries.values())
    result["current-context"] = first.get("current-context") or second.get("current-context") or ""
    return result


def absolute_paths(document: Document, *, folder: Path) -> Document:
    """Return the document with absolute paths of files and of exec plugins with a relative path."""
    result = dict(document)
    for section, fields in _PATHS.items():
        kind = section.removesuffix("s")
        result[section] = [
            {**entry, kind: _absolute_entry(entry.get(kind) or {}, fields, folder)}
            for entry in document.get(section) or ()
        ]
    return result


def _absolute_entry(entry: Mapping[str, Any], fields: Sequence[str], folder: Path) -> Document:
    result = dict(entry)
    for field in fields:
        if result.get(field):
            result[field] = str(folder / Path(str(result[field])).expanduser())
    plugin = result.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command") or ""):
        result["exec"] = {**plugin, "command": str(folder / str(plugin["command"]))}
    return result


def choose_context(document: Document, choice: ConfigChoice) -> Document:
    """Return the document with the chosen context as the current one, and the chosen cluster and user in it.

    Raises InputError if the chosen context does not exist.
    """
    name = choice.context or str(document.get("current-context") or "")
    if not (choice.cluster or choice.user):
        return {**document, "current-context": name}
    contexts = {entry["name"]: dict(entry.get("context") or {}) for entry in document.get("contexts") or ()}
    if choice.context and choice.context not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        raise InputError(f"context {choice.context!r} does not exist", hint=f"Available contexts: {known}.")
    chosen = contexts.get(name, {})
    chosen |= {key: value for key, value in (("cluster", choice.cluster), ("user", choice.user)) if value}
    contexts[name or _FROM_OPTIONS] = chosen
    entries = [{"name": key, "context": value} for key, value in contexts.items()]
    return {**document, "contexts": entries, "current-context": name or _FROM_OPTIONS}


def _pod_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip() or "default"
    except OSError:
        return "default"
