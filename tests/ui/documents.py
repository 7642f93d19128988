"""Documents of the page, as a busy gateway would send them: the same on every run."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

GPU = "nvidia.com/gpu"
VERSION = "0.1.0"
TENANTS = ("alpha", "atlas", "beta", "gamma", "research-vision")
GUARANTEES = {"a100.local": 24, "h100.local": 16, "v100.edge": 4}
"""Units of each tenant by pool."""

Document = dict[str, Any]
Item = dict[str, Any]

JOBS = ("train-llm", "finetune", "eval-suite", "diffusion", "embed", "sweep-07", "notebook", "ablation")
HELP = {
    "WaitingForRoom": "Nodes must become free. Smaller pods start sooner. With a run limit (annotation "
    "vkgateway.io/gang-run-limit), the gang can be backfilled.",
    "WaitingForQuota": "The tenant's limit is reached. The gang starts when other pods of the tenant end. A gang that "
    "requests more than the whole limit never starts; an admin can raise the limit.",
    "BehindReservation": "The capacity is reserved for a larger gang ahead in the queue. With a run limit (annotation "
    "vkgateway.io/gang-run-limit) that ends before the reservation, the gang can start now.",
    "WaitingForMembers": "The gang is incomplete: pods are missing, or the object with the number of pods, or a "
    "scheduler that binds the pods. Check their controller (a Job, an operator, a quota) and their events.",
    "WaitingForEviction": "The arbiter evicts borrowing pods for this gang. No action is needed.",
    "Infeasible": "The gang can never start in this form. Request less in each pod, fewer pods, or another pool.",
}
MESSAGES = {
    "WaitingForRoom": "needs 4 pods of nvidia.com/gpu 8; 1 of 4 would fit now",
    "WaitingForQuota": "needs nvidia.com/gpu 16; in use in a100.local: nvidia.com/gpu 24; limit: nvidia.com/gpu 32",
    "BehindReservation": "capacity is free, but reserved for a gang ahead",
    "WaitingForMembers": "3 of 4 pods exist",
    "WaitingForEviction": "2 pods on its nodes have their notice",
    "Infeasible": "needs 2 pods of nvidia.com/gpu 16; even on empty nodes, none would fit: the largest node has 8",
}


def gang(tenant: str, namespace: str, name: str, **fields: Any) -> Item:
    """Return a waiting gang of one pod, changed by the given fields."""
    return {
        "id": f"{tenant}/{namespace}/Job/{name}",
        "tenant": tenant,
        "namespace": namespace,
        "name": name,
        "way": "Job",
        "band": "guaranteed",
        "priority": 0,
        "pools": ["a100.local"],
        "pool": "a100.local",
        "state": "waiting",
        "pods": 1,
        "placed": 0,
        "minimum": 1,
        "units": 8,
        "waitingUnits": 8,
        "borrowed": False,
        "since": None,
        "deadline": None,
        "code": "",
        "message": "",
        "place": 0,
        "earliest": None,
        "likely": None,
        "behind": "",
        "spread": [],
        "controller": "",
        "help": "",
        **fields,
    }


class _Pool:
    """Nodes of a pool, filled one gang after the other."""

    def __init__(self, name: str, nodes: int, capacity: int = 8) -> None:
        self.name, self.capacity = name, capacity
        self.nodes: list[Item] = [
            {
                "name": f"{name.split('.', maxsplit=1)[0]}-{number:02d}",
                "pool": name,
                "resource": GPU,
                "capacity": capacity,
                "usable": True,
                "problem": "",
                "others": 0,
                "free": capacity,
                "parts": [],
            }
            for number in range(1, nodes + 1)
        ]

    def place(self, units: int, part: Item, *, near: random.Random) -> bool:
        fitting = [node for node in self.nodes if node["usable"] and node["free"] >= units]
        if not fitting:
            return False
        partly = [node for node in fitting if node["free"] < self.capacity]
        node = near.choice(partly or fitting)
        node["free"] -= units
        node["parts"].append({"units": units, **part})
        return True

    def close(self, index: int, problem: str) -> None:
        self.nodes[index].update(usable=False, problem=problem, free=0)


def platform(now: float, *, seed: int = 7) -> Document:
    """Return the document of the platform: three pools, five tenants, what runs, waits and is evicted."""
    chance = random.Random(seed)
    pools = [_Pool("a100.local", 24), _Pool("h100.local", 12), _Pool("v100.edge", 10, capacity=4)]
    pools[0].close(5, "cordoned")
    pools[2].close(9, "NotReady: Kubelet stopped posting node status")
    for node in pools[0].nodes[2:4]:
        node["others"], node["free"] = 2, node["free"] - 2
    gangs = _running(pools, chance, now)
    gangs |= _waiting(chance, now)
    timeline = _timeline(gangs, chance, now)
    return {
        "scope": "platform",
        "time": now,
        "leading": True,
        "gangs": gangs,
        "nodes": {f"{pool.name.split('.')[1]}/{node['name']}/{GPU}": node for pool in pools for node in pool.nodes},
        "pools": {f"{pool.name}/{GPU}": _pool_report(pool, gangs) for pool in pools},
        "tenants": _tenant_reports(pools, gangs),
        "timeline": timeline,
        "clusters": _clusters(now),
        "controlPlanes": _control_planes(now),
    }


def _running(pools: list[_Pool], chance: random.Random, now: float) -> dict[str, Item]:
    gangs: dict[str, Item] = {}
    taken: dict[tuple[str, str], int] = defaultdict(int)
    for number in range(52):
        pool = chance.choices(pools, (5, 3, 2))[0]
        tenant = TENANTS[number % len(TENANTS)]
        size = chance.choice((1, 1, 2, 4, pool.capacity))
        pods = chance.choice((1, 1, 2, 4))
        borrowed = taken[tenant, pool.name] + size * pods > GUARANTEES[pool.name]
        leaving = borrowed and number % 6 == 3
        job = f"{chance.choice(JOBS)}-{number}"
        made = gang(
            tenant,
            chance.choice(("ml", "research", "prod")),
            job,
            pool=pool.name,
            pools=[pool.name],
            state="leaving" if leaving else "running",
            band="low" if borrowed else "guaranteed",
            pods=pods,
            placed=pods,
            minimum=pods,
            units=size * pods,
            waitingUnits=0,
            borrowed=borrowed,
            since=now - chance.uniform(60, 90_000),
            deadline=now + chance.uniform(20, 200) if leaving else None,
            message="a guarantee reclaims its capacity" if leaving else "",
        )
        part = {"tenant": tenant, "borrowed": borrowed, "gang": made["id"], "leaving": leaving}
        if all(pool.place(size, part, near=chance) for _ in range(pods)):
            gangs[made["id"]] = made
            taken[tenant, pool.name] += 0 if borrowed else size * pods
    return gangs


def _waiting(chance: random.Random, now: float) -> dict[str, Item]:
    gangs: dict[str, Item] = {}
    places: dict[str, int] = defaultdict(int)
    codes = ("WaitingForRoom", "WaitingForRoom", "WaitingForQuota", "BehindReservation", "WaitingForEviction")
    for number in range(17):
        tenant = TENANTS[(number * 2) % len(TENANTS)]
        pool = ("a100.local", "a100.local", "h100.local")[number % 3]
        code = codes[number % len(codes)] if number < 15 else ("WaitingForMembers", "Infeasible")[number - 15]
        queued = number < 15
        if queued:
            places[pool] += 1
        earliest = now + places[pool] * chance.uniform(120, 900) if queued else None
        pods = chance.choice((1, 2, 4, 8))
        made = gang(
            tenant,
            chance.choice(("ml", "research", "prod")),
            f"{chance.choice(JOBS)}-w{number}",
            pool=pool,
            pools=[pool],
            band="guaranteed" if number % 4 else "low",
            pods=pods,
            minimum=pods,
            units=8 * pods,
            waitingUnits=8 * pods,
            since=now - chance.uniform(30, 20_000),
            code=code,
            message=MESSAGES[code],
            help="" if code == "WaitingForEviction" else HELP[code],
            place=places[pool] if queued else 0,
            earliest=earliest,
            likely=earliest + chance.uniform(60, 4000) if earliest is not None and number % 6 != 5 else None,
        )
        gangs[made["id"]] = made
    first = {made["pool"]: made["id"] for made in reversed(gangs.values()) if made["place"] == 1}
    for made in gangs.values():
        if made["code"] == "BehindReservation":
            made["behind"] = first[made["pool"]]
    return gangs


def _pool_report(pool: _Pool, gangs: dict[str, Item]) -> Item:
    usable = [node for node in pool.nodes if node["usable"]]
    parts = [part for node in usable for part in node["parts"]]
    free = sum(node["free"] for node in usable)
    on_partly_used = sum(node["free"] for node in usable if node["free"] < node["capacity"])
    waiting = [made for made in gangs.values() if made["pool"] == pool.name and made["state"] == "waiting"]
    name, cluster = pool.name.split(".")
    guaranteed = len(TENANTS) * GUARANTEES[pool.name]
    return {
        "pool": name,
        "computeCluster": cluster,
        "node": pool.name,
        "resource": GPU,
        "nodes": len(pool.nodes),
        "usableNodes": len(usable),
        "allocatable": sum(node["capacity"] for node in usable),
        "others": sum(node["others"] for node in usable),
        "guaranteed": guaranteed,
        "kept": guaranteed,
        "used": sum(part["units"] for part in parts if not part["borrowed"]),
        "borrowed": sum(part["units"] for part in parts if part["borrowed"]),
        "lent": 6,
        "free": free,
        "waiting": sum(made["waitingUnits"] for made in waiting),
        "largest": max(node["free"] for node in usable),
        "wholeNodes": sum(node["free"] == node["capacity"] for node in usable),
        "spareNodes": 2,
        "spareNodesInUse": 1,
        "fragmentation": on_partly_used / free if free else 0.0,
        "gangsWaiting": len(waiting),
        "gangsRunning": sum(made["pool"] == pool.name and made["state"] != "waiting" for made in gangs.values()),
        "gangsBelowMinimum": 0,
    }


def _tenant_reports(pools: list[_Pool], gangs: dict[str, Item]) -> dict[str, Item]:
    reports: dict[str, Item] = {}
    for tenant in TENANTS:
        for pool in pools:
            name, cluster = pool.name.split(".")
            own = [made for made in gangs.values() if made["tenant"] == tenant and made["pool"] == pool.name]
            parts = [part for node in pool.nodes for part in node["parts"] if part["tenant"] == tenant]
            if pool.name == "v100.edge" and not own:
                continue
            guarantee = GUARANTEES[pool.name]
            short = tenant == "atlas" and name == "a100"
            reports[f"{tenant}/{pool.name}/{GPU}"] = {
                "tenant": tenant,
                "pool": name,
                "computeCluster": cluster,
                "resource": GPU,
                "guarantee": guarantee,
                "kept": 16 if short else guarantee,
                "reduced": "3x8 -> 2x8" if short else "",
                "limit": {"a100": 64, "h100": 32}.get(name) if tenant != "beta" else None,
                "weight": 2.0 if tenant == "gamma" else 1.0,
                "used": sum(part["units"] for part in parts if not part["borrowed"]),
                "borrowed": sum(part["units"] for part in parts if part["borrowed"]),
                "waiting": sum(made["waitingUnits"] for made in own),
                "gangsWaiting": sum(made["state"] == "waiting" for made in own),
                "gangsRunning": sum(made["state"] != "waiting" for made in own),
            }
    return reports


def _timeline(gangs: dict[str, Item], chance: random.Random, now: float) -> dict[str, Item]:
    kinds = ("start", "start", "start", "evict", "end", "end", "reprieve", "promote")
    reasons = {
        "start": ("inside the guarantee", "borrows idle capacity"),
        "evict": ("a guarantee reclaims its capacity", "a gang of higher priority needs its nodes"),
        "reprieve": ("other pods ended first",),
        "promote": ("other pods inside the guarantee ended",),
        "end": ("all its pods terminated",),
    }
    known = list(gangs.values())
    entries: dict[str, Item] = {}
    for number in range(160):
        made, kind = chance.choice(known), kinds[number % len(kinds)]
        reason = chance.choice(reasons[kind])
        entries[str(1000 + number)] = {
            "time": now - (160 - number) * 500 + chance.uniform(0, 300),
            "kind": kind,
            "gang": made["id"],
            **{name: made[name] for name in ("tenant", "namespace", "name", "pool", "units", "pods")},
            "borrowed": kind == "start" and reason.startswith("borrows"),
            "reason": reason,
            "reclaim": kind == "evict" and "guarantee" in reason,
            "for": chance.choice(known)["id"] if kind == "evict" else "",
            "since": now - 90_000 if kind in ("evict", "end") else None,
        }
    return entries


def condition(kind: str, status: str = "True", reason: str = "", message: str = "", *, since: float) -> Item:
    return {"type": kind, "status": status, "reason": reason, "message": message, "since": since}


def _clusters(now: float) -> dict[str, Item]:
    day = now - 86_400
    return {
        "local": {"conditions": [condition("Connected", since=day), condition("Ready", since=day)]},
        "edge": {
            "conditions": [
                condition("Connected", since=day),
                condition("Ready", since=day),
                condition(
                    "SchedulersReady",
                    "False",
                    "SchedulerSilent",
                    "Kueue in pool v100 has answered no workload for 2 minutes; check its Deployment kueue-system/"
                    "kueue-controller-manager",
                    since=now - 130,
                ),
            ]
        },
    }


def _control_planes(now: float) -> dict[str, Item]:
    kinds = ("Accepted", "ControlPlaneReady", "VirtualNodesReady", "Ready", "GuaranteeKept")
    planes: dict[str, Item] = {
        tenant: {
            "phase": "Ready",
            "driver": "kubernetes",
            "conditions": [condition(kind, since=now - 90_000) for kind in kinds],
        }
        for tenant in TENANTS
    }
    planes["atlas"]["conditions"][-1] = condition(
        "GuaranteeKept",
        "False",
        "NodesMissing",
        "a100.local: nvidia.com/gpu 24 -> 16, cells 3x8 -> 2x8; 23 of 24 nodes can be used",
        since=now - 700,
    )
    planes["gamma"] |= {"phase": "Degraded"}
    planes["gamma"]["conditions"][1] = condition(
        "ControlPlaneReady", "Unknown", "EtcdStarting", "waits for etcd: 1 of 3 members answers", since=now - 40
    )
    return planes


def tenant(now: float, name: str = "alpha", *, seed: int = 7) -> Document:
    """Return the document of one tenant, cut from that of the platform."""
    whole = platform(now, seed=seed)
    own = {key: dict(made) for key, made in whole["gangs"].items() if made["tenant"] == name}
    for made in own.values():
        made["behind"] = made["behind"] if made["behind"] in own else ""
    reports = {key: report for key, report in whole["tenants"].items() if report["tenant"] == name}
    nodes = {
        f"{report['pool']}.{report['computeCluster']}/{GPU}": {
            "name": f"{report['pool']}.{report['computeCluster']}",
            "pool": f"{report['pool']}.{report['computeCluster']}",
            "resource": GPU,
            "capacity": report["limit"] or 184,
            "usable": report["computeCluster"] == "local",
            "problem": "" if report["computeCluster"] == "local" else "compute cluster edge is unreachable",
        }
        for report in reports.values()
    }
    return {
        "scope": "tenant",
        "time": now,
        "leading": True,
        "gangs": own,
        "tenants": reports,
        "nodes": nodes,
        "timeline": {
            key: {**entry, "for": entry["for"] if entry["for"].startswith(f"{name}/") else ""}
            for key, entry in whole["timeline"].items()
            if entry["tenant"] == name
        },
        "controlPlanes": {name: whole["controlPlanes"][name]},
    }


def history(document: Document, now: float, *, step: int = 60, points: int = 300) -> Item:
    """Return plausible figures of the last hours for each pool or tenant of a document, with a gap."""
    chance = random.Random(3)
    times = [now - (points - index) * step for index in range(points)]
    series: dict[str, Item] = {}
    for key, report in (document.get("pools") or document["tenants"]).items():
        most = float(report.get("allocatable") or report["guarantee"])
        used, borrowed, waiting = most * 0.4, most * 0.1, 8.0
        rows: dict[str, list[float | None]] = {"used": [], "borrowed": [], "waiting": [], "total": []}
        for index in range(points):
            used = min(most * 0.75, max(0, used + chance.choice((-2, -1, 0, 0, 1, 2))))
            borrowed = min(most * 0.25, max(0, borrowed + chance.choice((-1, 0, 0, 1))))
            waiting = max(0, waiting + chance.choice((-8, 0, 0, 0, 8)))
            gap = 120 <= index < 132
            for name, value in (("used", used), ("borrowed", borrowed), ("waiting", waiting), ("total", most)):
                rows[name].append(None if gap else round(value))
        series[key] = rows
    return {"step": step, "times": times, "series": series}


def usage(document: Document) -> Item:
    """Return GPU-hours of 24 days for each tenant of a document, with budgets."""
    chance = random.Random(5)
    tenants = sorted({report["tenant"] for report in document["tenants"].values()})
    days = []
    for day in range(3, 27):
        for name in tenants:
            for pool, band in (("a100", "guaranteed"), ("a100", "low"), ("h100", "guaranteed")):
                hours = chance.uniform(40, 300) * (0.4 if day % 7 in (1, 2) else 1)
                days.append(
                    {
                        "day": f"2026-11-{day:02d}",
                        "tenant": name,
                        "pool": pool,
                        "computeCluster": "local",
                        "band": band,
                        "resource": GPU,
                        "hours": hours,
                        "borrowed": hours * (0.9 if band == "low" else 0.1),
                        "lost": hours * (0.06 if band == "low" else 0.0),
                    }
                )
    budgets = [
        {"tenant": name, "resource": GPU, "budget": 12_000, "used": used, "month": "2026-11", "state": state}
        for name, used, state in zip(tenants, (6200, 10_400, 12_350), ("ok", "warning", "exhausted"), strict=False)
    ]
    return {"days": days, "budgets": budgets}


def starts() -> Item:
    """Return the phases of starts in two pools, and slow images."""
    seconds = {"admit": 3.0, "bind": 0.4, "sandbox": 1.8, "pull": 95.0, "start": 2.2, "ready": 6.0}
    pools = [
        {
            "pool": pool,
            "starts": number,
            "phases": [
                {"phase": phase, "median": median * factor, "slowest": median * factor * 4}
                for phase, median in seconds.items()
            ],
            "starting": starting,
        }
        for pool, number, factor, starting in (("a100", 212, 1.0, {"pull": 6, "ready": 1}), ("h100", 71, 0.3, {}))
    ]
    images = [
        {"image": name, "pulls": pulls, "seconds": pulls * each, "longest": each * 2.4, "failures": failures}
        for name, pulls, each, failures in (
            ("registry.example.org/research/train-llm:2026.11", 48, 171.0, 0),
            ("registry.example.org/serving/triton@sha256:3e5c0fd2", 31, 88.0, 2),
            ("docker.io/library/busybox:1.37", 120, 1.4, 0),
        )
    ]
    return {"pools": pools, "images": images}


HOSTILE = {
    "html": '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>',
    "bidirectional": "abc\u202e\u2066gnp.exe \u05d0\u05d1\u05d2 \u0645\u0631\u062d\u0628\u0627",
    "long": "x" * 253,
    "emoji": "\U0001f680\U0001f469\u200d\U0001f52c" * 12,
    "template": "${1+1} {{7*7}} `x` __proto__",
}
"""Names that no page may obey."""


def hostile(now: float) -> Document:
    """Return a platform document whose names, messages and reasons are hostile."""
    document = platform(now)
    for number, (kind, text) in enumerate(HOSTILE.items()):
        made = gang(
            text,
            text,
            text,
            code="WaitingForRoom" if number else text,
            message=text,
            help=text,
            place=number + 50,
            since=now - 60,
            earliest=now + 100,
            likely=now + 900,
        )
        document["gangs"][made["id"]] = made
        document["timeline"][str(5000 + number)] = {
            "time": now,
            "kind": "evict",
            "gang": made["id"],
            "tenant": text,
            "namespace": text,
            "name": text,
            "pool": text,
            "units": 8,
            "pods": 1,
            "borrowed": True,
            "reason": text,
            "reclaim": True,
            "for": made["id"],
        }
        document["tenants"][f"{text}/a100.local/{GPU}"] = {
            **next(iter(document["tenants"].values())),
            "tenant": text,
            "reduced": text,
            "kept": 0,
        }
        document["clusters"][text] = {"conditions": [condition(text, "False", text, text, since=now)]}
        document["controlPlanes"][text] = {
            "phase": text,
            "driver": text,
            "conditions": [condition(text, "Unknown", text, text, since=now)],
        }
        document["nodes"][f"local/{text}/{GPU}"] = {
            **document["nodes"][f"local/a100-01/{GPU}"],
            "name": text,
            "usable": number % 2 == 0,
            "problem": text,
            "free": 6,
            "parts": [{"tenant": text, "units": 2, "borrowed": True, "gang": made["id"], "leaving": kind == "html"}],
        }
    document["gangs"]["__proto__"] = gang("alpha", "ml", "proto") | {"id": "__proto__"}
    return document


def large(now: float, *, gangs: int = 10_000, nodes: int = 1_000) -> Document:
    """Return a platform document with many gangs and nodes."""
    chance = random.Random(11)
    document = platform(now)
    document["gangs"], document["nodes"] = {}, {}
    for number in range(nodes):
        free, parts = 8, []
        while free and chance.random() < 0.85:
            units = min(free, chance.choice((1, 2, 4, 8)))
            name = f"gang-{chance.randrange(gangs)}"
            owner = chance.choice(TENANTS)
            borrowed = chance.random() < 0.3
            parts.append(
                {
                    "tenant": owner,
                    "units": units,
                    "borrowed": borrowed,
                    "gang": f"{owner}/ml/Job/{name}",
                    "leaving": borrowed and chance.random() < 0.05,
                }
            )
            free -= units
        document["nodes"][f"local/gpu-{number:04d}/{GPU}"] = {
            "name": f"gpu-{number:04d}",
            "pool": "a100.local",
            "resource": GPU,
            "capacity": 8,
            "usable": number % 97 != 0,
            "problem": "" if number % 97 else "cordoned",
            "others": 0,
            "free": free,
            "parts": parts,
        }
    for number in range(gangs):
        waits = number % 5 == 0
        code = ("WaitingForRoom", "WaitingForQuota", "BehindReservation")[number % 3]
        made = gang(
            TENANTS[number % len(TENANTS)],
            "ml",
            f"gang-{number}",
            state="waiting" if waits else "running",
            placed=0 if waits else 1,
            waitingUnits=8 if waits else 0,
            since=now - number,
            code=code if waits else "",
            message=MESSAGES[code] if waits else "",
            help=HELP[code] if waits else "",
            place=number // 5 + 1 if waits else 0,
            earliest=now + number if waits else None,
            likely=now + number * 2 + 60 if waits else None,
        )
        document["gangs"][made["id"]] = made
    return document
