"""A simulation of the kernel's nftables as far as the rules use it: whether a packet passes."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from vkgateway_platform.embedded.netpol.cluster_state import ClusterState, Site
from vkgateway_platform.embedded.netpol.ruleset import render_ruleset


@dataclass(frozen=True, kw_only=True)
class Packet:
    saddr: str
    daddr: str
    iifname: str = "veth1"
    protocol: str = "tcp"
    dport: int = 80
    known: bool = False
    """Whether the packet belongs to an established connection."""


class Kernel:
    """Evaluates the table of a cluster state."""

    def __init__(self, world: ClusterState, site: Site) -> None:
        self.chains: dict[str, list[str]] = {}
        self.sets: dict[str, list[str]] = {}
        name = ""
        for line in render_ruleset(world, site).splitlines()[3:-1]:
            if opened := re.match(r"(chain|set|map) (\S+) \{", line):
                kind, name = opened.groups()
                (self.chains if kind == "chain" else self.sets)[name] = []
            elif line.startswith("elements = "):
                self.sets[name] = _members(line.removeprefix("elements = "))
            elif line != "}" and not line.startswith("type "):
                self.chains[name].append(line)

    def passes(self, packet: Packet, *, hook: str = "forward") -> bool:
        return self._run(hook, packet) in ("accept", "")

    def _run(self, chain: str, packet: Packet) -> str:
        """Return the verdict; empty at the chain's end or a return."""
        for rule in self.chains[chain]:
            words, verdict = self._match(rule.replace(" reject with icmp type admin-prohibited", " drop"), packet)
            if words:
                continue
            if verdict == "return":
                return ""
            if verdict.startswith("jump "):
                verdict = self._run(verdict.split()[1], packet)
            if verdict:
                return verdict
        return ""

    def _match(self, rule: str, packet: Packet) -> tuple[bool, str]:
        """Return whether a match of the rule fails, and the rule's verdict."""
        rest = rule.replace("reject with icmp type admin-prohibited", "drop")
        while rest:
            if rest in ("accept", "drop", "return") or rest.startswith("jump "):
                return False, rest
            if found := re.match(r"ct state established,related ", rest):
                holds = packet.known
            elif found := re.match(r"(ip \w+(?: \. \w+(?: \w+)?)?) vmap @(\w+)", rest):
                value = self._value(found[1], packet)
                verdicts = dict(entry.split(" : ") for entry in self.sets[found[2]])
                return value not in verdicts, verdicts.get(value, "")
            else:
                found = re.match(r"([a-z .]+?) (!= )?(\{[^}]*\}|@\w+|\d[0-9./-]*|eth0|lo)(?: |$)", rest)
                assert found, rest
                value = self._value(found[1], packet)
                members = self.sets[found[3][1:]] if found[3].startswith("@") else _members(found[3])
                holds = any(_is_in(value, member) for member in members) != bool(found[2])
            if not holds:
                return True, ""
            rest = rest[found.end() :]
        raise AssertionError(f"{rule} has no verdict")

    @staticmethod
    def _value(key: str, packet: Packet) -> str:
        """Return a key's value for a packet; empty if it has none."""
        parts = []
        for part in key.split(" . "):
            head, _, tail = part.rpartition(" ")
            if tail == "dport":
                if head != packet.protocol:
                    return ""
                parts.append(str(packet.dport))
            else:
                parts.append(str(getattr(packet, tail)))
        return " . ".join(parts)


def _members(text: str) -> list[str]:
    return [one.strip() for one in text.strip("{} ").split(",")]


def _is_in(value: str, member: str) -> bool:
    if not value:
        return False
    if "/" in member:
        return ipaddress.ip_address(value) in ipaddress.ip_network(member)
    if re.fullmatch(r"\d+-\d+", member):
        first, last = map(int, member.split("-"))
        return first <= int(value) <= last
    return value == member
