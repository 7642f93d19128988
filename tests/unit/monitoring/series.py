"""Series of a healthy gateway, and those of each trouble that an alert reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Series = Mapping[str, str]
"""Values by series, in the notation of `promtool test rules`; one value per minute."""

MINUTES = 150
DAY = 1440
FOREVER = f"x{MINUTES}"


def constant(value: float) -> str:
    return f"{value}+0{FOREVER}"


def growing(per_minute: float) -> str:
    return f"0+{per_minute}{FOREVER}"


def histogram(name: str, per_minute: float, **buckets: float) -> dict[str, str]:
    """Return a histogram of which each bucket has its share of the observations, such as `le_10=0.9`."""
    shares = {key.removeprefix("le_").replace("_", "."): share for key, share in buckets.items()} | {"+Inf": 1.0}
    found = {f'{name}_bucket{{le="{le}"}}': growing(per_minute * share) for le, share in shares.items()}
    return found | {f"{name}_count": growing(per_minute)}


def tenant(condition: str, reason: str, *, name: str = "alpha") -> str:
    return f'vkgateway_tenant_condition{{tenant="{name}",condition="{condition}",reason="{reason}"}}'


def compute(condition: str, reason: str, *, name: str = "local") -> str:
    return f'vkgateway_compute_cluster_condition{{compute_cluster="{name}",condition="{condition}",reason="{reason}"}}'


def pool(name: str) -> str:
    return f'vkgateway_arbiter_{name}{{pool="a100.local",resource="nvidia.com/gpu"}}'


def budget(name: str, tenant_name: str = "alpha") -> str:
    return f'vkgateway_budget_{name}{{tenant="{tenant_name}",resource="nvidia.com/gpu",pool=""}}'


def certificate(name: str) -> str:
    return f'vkgateway_certificate_expiry_timestamp_seconds{{certificate="{name}"}}'


def waiting(pool_name: str = "a100.local") -> str:
    return f'vkgateway_arbiter_waiting_gangs{{pool="{pool_name}"}}'


ETCD = 'service="vkgateway-etcd",pod="vkgateway-etcd-0"'
IN_USE, QUOTA = 'vkgateway_datastore_bytes{what="in_use"}', 'vkgateway_datastore_bytes{what="quota"}'


def pulls(result: str) -> str:
    return f'vkgateway_image_pulls_total{{pool="a100.local",result="{result}"}}'


DEFECTS = 'vkgateway_work_retries_total{reason="defect"}'
CYCLES = histogram("vkgateway_arbiter_cycle_seconds", 2, le_0_05=1, le_1=1)
SLOW_CYCLES = histogram("vkgateway_arbiter_cycle_seconds", 2, le_0_05=0.5, le_1=0.5, le_10=1)

HEALTHY: Series = {
    'vkgateway_leader{pod="a"}': constant(1),
    'vkgateway_leader{pod="b"}': constant(0),
    'vkgateway_lease_transitions{pod="a"}': constant(70),
    'vkgateway_lease_transitions{pod="b"}': f"NaN+0{FOREVER}",
    'vkgateway_tenants{phase="Ready"}': constant(1),
    **histogram("vkgateway_lease_renewal_seconds", 40, le_0_05=0.99, le_0_1=1, le_1=1),
    DEFECTS: constant(0),
    "vkgateway_event_loop_lag_seconds": constant(0.002),
    'vkgateway_queue_depth{tenant="alpha"}': f"500+0x5 0+0{FOREVER}",
    **histogram("vkgateway_pod_forward_seconds", 5, le_1=0.8, le_10=1, le_60=1),
    **{tenant(name, name): constant(1) for name in ("Accepted", "ControlPlaneReady", "VirtualNodesReady", "Ready")},
    tenant("GuaranteeKept", "Kept"): constant(1),
    tenant("GuaranteeKept", "QueuesNotManaged", name="beta"): constant(0),
    **{compute(name, name): constant(1) for name in ("Connected", "Ready", "SchedulersReady")},
    compute("SchedulersReady", "ModeChangeRefused", name="other"): constant(0),
    compute("ImagesPulled", "Pulling"): constant(0),
    pulls("pulled"): growing(4),
    pulls("failed"): growing(0.1),
    pulls("not_found"): growing(20),
    budget("hours"): constant(1000),
    budget("used_hours"): growing(5),
    budget("hours", "never-borrows"): constant(0),
    budget("used_hours", "never-borrows"): growing(5),
    "vkgateway_guaranteed_overdue_seconds": f"0+60x4 0+0{FOREVER}",
    waiting(): f"3+0x50 0+0{FOREVER}",
    **CYCLES,
    'vkgateway_arbiter_gangs_below_minimum{pool="a100.local"}': f"1+0x10 0+0{FOREVER}",
    pool("free_units"): constant(12),
    pool("allocatable_units"): constant(16),
    IN_USE: constant(1e9),
    QUOTA: constant(4e9),
    "vkgateway_datastore_held_tenants": constant(0),
    certificate("kubelet"): constant(100 * DAY * 60),
    certificate("etcd-authority"): constant(3000 * DAY * 60),
    f"etcd_server_has_leader{{{ETCD}}}": constant(1),
    f"up{{{ETCD}}}": constant(1),
    f'etcd_disk_wal_fsync_duration_seconds_bucket{{{ETCD},le="0.01"}}': growing(100),
    f'etcd_disk_wal_fsync_duration_seconds_bucket{{{ETCD},le="1"}}': growing(100),
    f'etcd_disk_wal_fsync_duration_seconds_bucket{{{ETCD},le="+Inf"}}': growing(100),
}
"""Also troubles that end by themselves before an alert fires. Time starts at 0, so certificates expire at their age."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Changes of the healthy series, the alerts that they fire, and when."""

    alerts: tuple[str, ...]
    series: Series
    absent: tuple[str, ...] = ()
    """Healthy series that are missing."""
    minute: int = 75


def _one(alert: str, series: Series, *absent: str, minute: int = 75) -> Trouble:
    return Trouble(alerts=(alert,), series=series, absent=absent, minute=minute)


TROUBLES: Mapping[str, Trouble] = {
    "no gateway": _one("VkgatewayAbsent", {}, 'vkgateway_tenants{phase="Ready"}'),
    "two standbys": _one("VkgatewayLeaderMissing", {'vkgateway_leader{pod="a"}': constant(0)}),
    "restarting leader": _one("VkgatewayLeaderChanges", {'vkgateway_lease_transitions{pod="a"}': growing(0.1)}),
    "slow renewals": _one(
        "VkgatewayLeaseSlow", histogram("vkgateway_lease_renewal_seconds", 40, le_0_05=0.5, le_0_1=0.5, le_1=1)
    ),
    "traceback": _one("VkgatewayDefect", {DEFECTS: f"0+0x73 1+0{FOREVER}"}),
    "no CPU": _one("VkgatewayEventLoopSlow", {"vkgateway_event_loop_lag_seconds": constant(0.5)}),
    "due objects": _one("VkgatewayWorkQueueFilling", {'vkgateway_queue_depth{tenant="alpha"}': constant(500)}),
    "slow forwarding": _one(
        "VkgatewayForwardingSlow", histogram("vkgateway_pod_forward_seconds", 5, le_1=0.1, le_10=0.2, le_60=1)
    ),
    "budget almost used": _one("VkgatewayBudgetNearlyUsed", {budget("used_hours"): constant(800)}),
    "budget used up": _one("VkgatewayBudgetUsedUp", {budget("used_hours"): constant(1000)}),
    "control plane without answer": _one(
        "VkgatewayTenantControlPlaneDown",
        {tenant("ControlPlaneReady", "Unreachable"): constant(0), tenant("Ready", "Unreachable"): constant(0)},
        tenant("ControlPlaneReady", "ControlPlaneReady"),
        tenant("Ready", "Ready"),
    ),
    "tenant that is not accepted": _one(
        "VkgatewayTenantNotReady",
        {
            tenant("Accepted", "UnknownPool", name="gamma"): constant(0),
            tenant("ControlPlaneReady", "NotStarted", name="gamma"): constant(0),
            tenant("Ready", "UnknownPool", name="gamma"): constant(0),
        },
    ),
    "missing nodes": _one(
        "VkgatewayGuaranteeNotKept",
        {tenant("GuaranteeKept", "NodesMissing"): constant(0)},
        tenant("GuaranteeKept", "Kept"),
    ),
    "failing renewal": _one(
        "VkgatewayTenantCertificatesNotRenewed",
        {tenant("ControlPlaneReady", "NotRenewed"): constant(0), tenant("Ready", "NotRenewed"): constant(0)},
        tenant("ControlPlaneReady", "ControlPlaneReady"),
        tenant("Ready", "Ready"),
    ),
    "lost compute cluster": _one(
        "VkgatewayComputeClusterUnreachable",
        {compute("Connected", "Unreachable"): constant(0), compute("Ready", "CannotConnect"): constant(0)},
        compute("Connected", "Connected"),
        compute("Ready", "Ready"),
    ),
    "invalid pool": _one(
        "VkgatewayComputeClusterNotReady", {compute("Ready", "InvalidPool"): constant(0)}, compute("Ready", "Ready")
    ),
    "Kueue without an answer": _one(
        "VkgatewaySchedulerNotReady",
        {compute("SchedulersReady", "SchedulerSilent"): constant(0)},
        compute("SchedulersReady", "SchedulersReady"),
    ),
    "missing pull secret": _one("VkgatewayImagesNotPulled", {compute("ImagesPulled", "PullFailed"): constant(0)}),
    "registry down": _one("VkgatewayImagePullsFailing", {pulls("failed"): growing(8)}),
    "shared nodes": _one("VkgatewayPoolsOverlap", {compute("PoolsApart", "NodesShared"): constant(0)}),
    "victims that stay": _one("VkgatewayGuaranteeLate", {"vkgateway_guaranteed_overdue_seconds": growing(60)}),
    "no cycle": _one("VkgatewayQueueStuck", {waiting(): f"0+0x40 3+0{FOREVER}", **dict.fromkeys(CYCLES, constant(9))}),
    "slow cycles": _one("VkgatewayCycleSlow", SLOW_CYCLES),
    "gang without a replacement": _one(
        "VkgatewayGangBelowMinimum", {'vkgateway_arbiter_gangs_below_minimum{pool="a100.local"}': constant(1)}
    ),
    "half a pool idle": _one("VkgatewayPoolIdle", {waiting(): constant(3)}),
    "full etcd": _one("VkgatewayDatastoreFilling", {IN_USE: constant(3.5e9)}),
    "read-only tenant": _one("VkgatewayDatastoreTenantsHeld", {"vkgateway_datastore_held_tenants": constant(1)}),
    "old certificate": _one("VkgatewayCertificateExpiring", {certificate("kubelet"): constant(10 * DAY * 60)}),
    "old authority": _one("VkgatewayAuthorityExpiring", {certificate("etcd-authority"): constant(100 * DAY * 60)}),
    "member alone": _one("VkgatewayEtcdNoLeader", {f"etcd_server_has_leader{{{ETCD}}}": constant(0)}),
    "member down": _one("VkgatewayEtcdMemberDown", {f"up{{{ETCD}}}": constant(0)}),
    "slow disk": _one(
        "VkgatewayEtcdSlowDisk",
        {f'etcd_disk_wal_fsync_duration_seconds_bucket{{{ETCD},le="0.01"}}': growing(10)},
    ),
}
"""By what is wrong. All other series are healthy, and no other alert fires."""
