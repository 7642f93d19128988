"""The CNI plugin that reports a pod's address before its containers start, so that its policies apply from the start.

Network plug-ins are separate programs (https://www.cni.dev/docs/spec/). This one forwards each call over a socket to
the process that enforces policies, and fails if that process does not answer. The kubelet then retries.
"""

from __future__ import annotations

import sys
from typing import Final

NAME: Final = "vkgateway-netpol"
SOCKET: Final = "/run/containerd/vkgateway-netpol.sock"
"""Path in the node's mount namespace, which has its own /run/containerd: a socket's path has at most 107 bytes."""

_PLUGIN_SCRIPT: Final = """\
#!{python} -IS
import json, os, socket, sys

def fail(message):
    print(json.dumps({{"cniVersion": "1.0.0", "code": 11, "msg": message}}))
    sys.exit(1)

command = os.environ["CNI_COMMAND"]
if command == "VERSION":
    print(json.dumps({{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}}))
    sys.exit(0)
config = json.load(sys.stdin)
if command not in ("ADD", "DEL"):
    sys.exit(0)
words = dict(word.split("=", 1) for word in os.environ.get("CNI_ARGS", "").split(";") if "=" in word)
result = config.get("prevResult") or {{}}
call = {{
    "command": command,
    "uid": words.get("K8S_POD_UID", ""),
    "addresses": [one["address"].partition("/")[0] for one in result.get("ips", ())],
}}
try:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(30)
        link.connect({path!r})
        link.sendall(json.dumps(call).encode() + b"\\n")
        answer = json.loads(link.makefile().readline())
except (OSError, ValueError) as error:
    if command == "ADD":
        fail("the process that enforces NetworkPolicies does not answer: " + str(error))
    sys.exit(0)
if answer["error"] and command == "ADD":
    fail(answer["error"])
if command == "ADD":
    print(json.dumps(result))
"""


def plugin_script() -> str:
    """Return the plugin: a script for the Python interpreter of this process, without packages."""
    return _PLUGIN_SCRIPT.format(python=sys.executable, path=SOCKET)
