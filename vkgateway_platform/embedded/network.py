"""The address at which a platform's servers listen, on its own interface if it may create one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from vkgateway.api.errors import UnavailableError, VkgatewayError

NUMBERS = range(256)
HOLLOW_PODS: Final = "10.232.0.0/14"
"""Addresses of pods on hollow nodes, of all platforms of the machine: they lead nowhere."""
_METRIC: Final = 20_000
"""Metric of the first platform's unreachable routes, above that of any other route."""
# An interface without traffic. Small kernels lack the first kind; a bridge without ports is equivalent.
_KINDS = ("dummy", "bridge")
_ALIAS_BYTES = 255
_SYSTEM_PATHS = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


def can_make_interfaces() -> bool:
    """Return whether this process may create a network interface: it is root and has the tool."""
    return os.geteuid() == 0 and _ip_tool() is not None


def interface_name(number: int) -> str:
    """Return the interface name of the platform with that number."""
    return f"vkg{number}"


def interface_address(number: int) -> str:
    """Return the address on that interface."""
    return f"10.213.{number}.1"


def numbers_at(sockets: Collection[tuple[str, int]]) -> list[int]:
    """Return the numbers of the platforms that have these sockets (addresses and ports)."""
    addresses = {address for address, _ in sockets}
    return [number for number in NUMBERS if interface_address(number) in addresses]


def interface_alias(data_dir: Path) -> str:
    """Return the interface's alias, by which its platform finds it again; the kernel allows 255 bytes."""
    whole = f"vkgateway {data_dir}"
    if len(os.fsencode(whole)) <= _ALIAS_BYTES:
        return whole
    # Two long paths may start alike, and a platform must not take the other's interface.
    return f"vkgateway {hashlib.sha256(os.fsencode(data_dir)).hexdigest()}"


def free_number(*, taken: Collection[str]) -> int:
    """Return the lowest number without an interface in `taken`."""
    for number in NUMBERS:
        if not {interface_name(number), f"vkgv{number}"} & set(taken):
            return number
    raise UnavailableError(
        f"all {len(NUMBERS)} platform numbers are taken on this machine",
        hint="Remove platforms with `vkgateway down --purge --data-dir DIR`; `ip link` lists their interfaces.",
    )


def list_interfaces() -> dict[str, str]:
    """Return the alias of each network interface of the machine."""
    listed: list[dict[str, Any]] = json.loads(_run_ip("-json", "link", "show") or "[]")
    return {link["ifname"]: link.get("ifalias", "") for link in listed}


def ensure_interface(name: str, *, address: str, owner: str) -> None:
    """Create the interface with its address and bring it up; an existing one stays.

    Raises:
        VkgatewayError: the system refuses, or another program owns the name (its alias is not `owner`).
    """
    interfaces = list_interfaces()
    if name not in interfaces:
        _add_interface(name, owner=owner)
    elif interfaces[name] != owner:
        raise UnavailableError(
            f"network interface {name} of this platform has another owner now ({interfaces[name] or 'no alias'})",
            hint=f"If that is a platform, stop it first. If nothing needs it, run `ip link delete {name}`.",
        )
    _run_ip("address", "replace", f"{address}/32", "dev", name)
    _run_ip("link", "set", "dev", name, "up")


def close_ranges(number: int) -> None:
    """Make addresses that the platform with that number invents unreachable where no other route leads to them.

    Without it, the machine would send packets for them to its default route. The metric tells the routes of several
    platforms apart; those of a real node come first. A machine that supports no such routes gets none.
    """
    for command in _closing_commands("replace", number):
        with contextlib.suppress(VkgatewayError):
            _run_ip(*command)


def _open_ranges(number: int) -> None:
    for command in _closing_commands("delete", number):
        with contextlib.suppress(VkgatewayError):
            _run_ip(*command)


def _closing_commands(action: str, number: int) -> list[tuple[str, ...]]:
    return [
        ("route", action, "unreachable", each, "metric", str(_METRIC + number))
        for each in (HOLLOW_PODS, f"10.214.{number}.0/24", f"10.215.{number}.0/24")
    ]


def owned_interfaces(owner: str) -> list[str]:
    """Return the interfaces with the owner's alias; none if this process may not create interfaces."""
    if not can_make_interfaces():
        return []
    return [name for name, its_alias in list_interfaces().items() if its_alias == owner]


def remove_interfaces(owner: str) -> list[str]:
    """Delete every interface with the owner's alias; return their names."""
    ours = owned_interfaces(owner)
    for name in ours:
        _run_ip("link", "delete", "dev", name)
    for number in NUMBERS:
        if interface_name(number) in ours:
            _open_ranges(number)
    return ours


def primary_address() -> str:
    """Return the address that this machine uses for outgoing connections; sends no packet.

    Raises:
        UnavailableError: the machine has only loopback, which API servers refuse to call.
    """
    for family, somewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((somewhere, 9))
            except OSError:
                continue
            address = str(probe.getsockname()[0])
            if not address.startswith("127."):
                return address
    raise UnavailableError(
        "this machine has no network address but loopback, which Kubernetes refuses for nodes",
        hint="Run `vkgateway up` as root, which creates an interface, or connect the machine to a network.",
    )


def _add_interface(name: str, *, owner: str) -> None:
    refusal = ""
    for kind in _KINDS:
        try:
            _run_ip("link", "add", "name", name, "type", kind)
            break
        except VkgatewayError as error:
            refusal = str(error)
    else:
        raise UnavailableError(
            f"the network interface {name} cannot be created: {refusal}",
            hint="Run `vkgateway up` as an ordinary user, which uses the machine's address.",
        )
    _run_ip("link", "set", "dev", name, "alias", owner)


def _run_ip(*arguments: str) -> str:
    tool = _ip_tool()
    if tool is None:
        raise UnavailableError("the program `ip` is missing", hint="Install it with `apt install iproute2`.")
    done = _run_command([tool, *arguments])
    if done.returncode:
        raise VkgatewayError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def _ip_tool() -> str | None:
    return shutil.which("ip", path=_SYSTEM_PATHS)
