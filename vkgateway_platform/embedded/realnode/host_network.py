"""The machine's side of the node's network: the end of the veth pair, masquerading, and the uplinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vkgateway_platform.embedded.realnode.host import ToolError, command_succeeds, run_command
from vkgateway_platform.embedded.realnode.options import NodeNetwork


@dataclass(frozen=True, slots=True)
class HostLink:
    """The machine's end of the veth pair; its alias names the owner, since numbers are reused."""

    network: NodeNetwork
    alias: str

    @property
    def exists(self) -> bool:
        """Whether an interface of this name exists, also one of another owner."""
        return self._directory.exists()

    @property
    def _directory(self) -> Path:
        return Path("/sys/class/net", self.network.host_link)

    def create(self, *, netns: str, mtu: int) -> None:
        """Create the pair, with its other end `eth0` in the network namespace that the file `netns` keeps alive."""
        name = self.network.host_link
        peer = ("type", "veth", "peer", "name", "eth0", "mtu", str(mtu), "netns", netns)
        run_command("ip", "link", "add", name, "mtu", str(mtu), *peer)
        run_command("ip", "link", "set", name, "alias", self.alias)
        run_command(*f"ip address add {self.network.host_address}/31 dev {name}".split())
        run_command("ip", "link", "set", name, "up")

    def remove(self) -> None:
        """Remove the pair and the nftables table, unless a newer platform has the number by now. Repeatable."""
        if self._is_foreign():
            return
        self._delete_interface()
        if command_succeeds("nft", "list", "table", "ip", self.network.nft_table):
            run_command("nft", "delete", "table", "ip", self.network.nft_table)

    def _is_foreign(self) -> bool:
        try:
            owner = (self._directory / "ifalias").read_text().strip()
        except OSError:
            return False
        return owner not in {"", self.alias}

    def _delete_interface(self) -> None:
        """Delete the interface; the kernel may be deleting it at the same time."""
        if not self.exists:
            return
        try:
            run_command("ip", "link", "delete", self.network.host_link)
        except ToolError:
            if self.exists:
                raise


def enable_masquerade(network: NodeNetwork) -> None:
    """Let pods reach networks beyond the machine, under the machine's address. Repeatable."""
    table = network.nft_table
    sources = f"{{ {network.node_address}, {network.pod_subnet} }}"
    rules = f"""
table ip {table}
delete table ip {table}
table ip {table} {{
  chain postrouting {{
    type nat hook postrouting priority srcnat;
    ip saddr {sources} oifname != "{network.host_link}" masquerade
  }}
}}
"""
    run_command("nft", "-f", "-", stdin=rules)


def list_uplinks() -> list[str]:
    """Return the interfaces of the default routes."""
    words = run_command("ip", "-4", "route", "show", "default").split()
    return sorted({words[index + 1] for index, word in enumerate(words) if word == "dev"})


def uplink_mtu(*, default: int = 1500) -> int:
    """Return the smallest MTU of the uplinks, so that pods' packets fit."""
    sizes = [int(Path(f"/sys/class/net/{name}/mtu").read_text()) for name in list_uplinks()]
    return min([*sizes, default])


def forwarding_settings(network: NodeNetwork) -> Mapping[str, str]:
    """Return the kernel settings that let packets pass between the node and the uplinks."""
    names = (network.host_link, *list_uplinks())
    return {f"/proc/sys/net/ipv4/conf/{name}/forwarding": "1" for name in names}
