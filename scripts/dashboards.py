"""Dashboards of deploy/monitoring/dashboards for Grafana. `make chart` writes them.

Each panel is a title, its queries (expression and legend) and a unit of Grafana.
"""

from __future__ import annotations

from typing import Final

from grafana import Dashboard, Panel

_POOL: Final = 'pool=~"$pool"'
_TENANT: Final = 'tenant=~"$tenant"'


def _quantile(share: float, metric: str, matchers: str = "", *, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{matchers}}}[$__rate_interval])))"


def _percentiles(metric: str, matchers: str = "") -> tuple[tuple[str, str], ...]:
    return tuple((_quantile(share, metric, matchers), name) for share, name in ((0.5, "median"), (0.99, "99 %")))


def _pool_units(*names: str) -> tuple[tuple[str, str], ...]:
    """Return queries of the pool's amounts; each leader exports all of them, standbys none."""
    return tuple(
        (
            f"max by (pool, resource) (vkgateway_arbiter_{name}_units{{{_POOL}}})",
            f"{{{{pool}}}} {{{{resource}}}} {name}",
        )
        for name in names
    )


PLATFORM: Final = Dashboard(
    name="platform",
    title="vkgateway / Platform",
    variables={"pool": "label_values(vkgateway_arbiter_allocatable_units, pool)"},
    panels=(
        Panel(
            title="Leaders",
            queries=(("sum(vkgateway_leader)", "leaders"),),
            text="One gateway leads. 0: nothing is forwarded.",
            kind="stat",
            width=4,
        ),
        Panel(
            title="Tenants",
            queries=(("max by (phase) (vkgateway_tenants)", "{{phase}}"),),
            text="Tenants by phase.",
            kind="stat",
            width=10,
        ),
        Panel(
            title="Compute clusters",
            queries=(("max by (reachable) (vkgateway_compute_clusters)", "reachable: {{reachable}}"),),
            text="Compute clusters by reachability.",
            kind="stat",
            width=5,
        ),
        Panel(
            title="Longest overdue guarantee",
            queries=(("max(vkgateway_guaranteed_overdue_seconds)", "overdue"),),
            text="Longest wait of a guaranteed gang since its victims' notice expired. Normal: below graceSeconds.",
            kind="stat",
            unit="s",
            width=5,
        ),
        Panel(
            title="Use of pools",
            queries=_pool_units("used", "borrowed", "others", "free"),
            text="Units inside guarantees, borrowed, used by unmanaged pods, and free.",
            stacked=True,
        ),
        Panel(
            title="Guarantees",
            queries=_pool_units("guaranteed", "kept", "lent"),
            text="Units that are guaranteed, that the nodes can hold, and that other tenants borrow from them.",
        ),
        Panel(
            title="Waiting gangs",
            queries=(
                (f"max by (pool) (vkgateway_arbiter_waiting_gangs{{{_POOL}}})", "{{pool}} waiting"),
                (f"max by (pool) (vkgateway_arbiter_gangs_below_minimum{{{_POOL}}})", "{{pool}} below minimum"),
            ),
            text="Gangs that wait, and running gangs that lost pods.",
        ),
        Panel(
            title="Fragmentation",
            queries=(
                (
                    f"max by (pool, resource) (vkgateway_arbiter_fragmentation_ratio{{{_POOL}}})",
                    "{{pool}} {{resource}}",
                ),
            ),
            text="Share of the free units on nodes in part use. Large gangs need whole nodes.",
            unit="percentunit",
        ),
        Panel(
            title="Decisions",
            queries=(("sum by (kind) (rate(vkgateway_arbiter_decisions_total[$__rate_interval]))", "{{kind}}"),),
            text="Decisions of the arbiter about gangs.",
            unit="ops",
        ),
        Panel(
            title="Duration of scheduling cycles",
            queries=_percentiles("vkgateway_arbiter_cycle_seconds"),
            text="Each start waits for a cycle. Normal: below a second.",
            unit="s",
        ),
        Panel(
            title="Start of guaranteed gangs",
            queries=((_quantile(0.99, "vkgateway_guaranteed_start_seconds", by="term"), "{{term}}"),),
            text="99th percentile of each part of the time to the start.",
            unit="s",
        ),
        Panel(
            title="Time to the compute pod",
            queries=_percentiles("vkgateway_pod_forward_seconds"),
            text="From the creation of a tenant pod to that of its compute pod, including the tenant's scheduler.",
            unit="s",
        ),
        Panel(
            title="Start of pods by phase",
            queries=((_quantile(0.9, "vkgateway_pod_start_phase_seconds", _POOL, by="phase"), "{{phase}}"),),
            text="90th percentile of each phase of a start, and of all: admit, bind, sandbox, pull, start, ready.",
            unit="s",
        ),
        Panel(
            title="Starting pods",
            queries=((f"sum by (pool, phase) (vkgateway_pods_starting{{{_POOL}}})", "{{pool}} {{phase}}"),),
            text="Pods with a compute pod that are not ready yet.",
        ),
        Panel(
            title="Image pulls",
            queries=(
                (
                    f"sum by (result) (rate(vkgateway_image_pulls_total{{{_POOL}}}[$__rate_interval]))",
                    "{{result}}",
                ),
            ),
            text="`present`: nothing was pulled. `failed`: the registry does not answer.",
            unit="ops",
        ),
        Panel(
            title="Images by pull time",
            queries=(("max by (image) (vkgateway_top_image_pull_seconds)", ""),),
            text="Total time of pulls since the gateway leads. Candidates for prePull.",
            kind="table",
        ),
        Panel(
            title="Reconcile requests",
            queries=(("sum by (sort) (rate(vkgateway_work_seconds_count[$__rate_interval]))", "{{sort}}"),),
            text="Reconcile requests by kind.",
            unit="ops",
        ),
        Panel(
            title="Retries",
            queries=(("sum by (reason) (rate(vkgateway_work_retries_total[$__rate_interval]))", "{{reason}}"),),
            text="Failed reconcile requests by kind of failure. `defect` is a bug.",
            unit="ops",
        ),
        Panel(
            title="Delay of the event loop",
            queries=(("max by (instance) (vkgateway_event_loop_lag_seconds)", "{{instance}}"),),
            text="Above 0.1 s, the gateway needs more CPU.",
            unit="s",
        ),
        Panel(
            title="Renewal of the Lease",
            queries=_percentiles("vkgateway_lease_renewal_seconds"),
            text="Normal: below 0.1 s.",
            unit="s",
        ),
    ),
)

TENANT: Final = Dashboard(
    name="tenant",
    title="vkgateway / Tenant",
    variables={"tenant": "label_values(vkgateway_tenant_condition, tenant)"},
    panels=(
        Panel(
            title="Conditions",
            queries=((f"max by (tenant, condition, reason) (vkgateway_tenant_condition{{{_TENANT}}})", ""),),
            text="1: the condition is True.",
            kind="table",
        ),
        Panel(
            title="Waiting gangs",
            queries=(
                (f"max by (tenant, pool) (vkgateway_arbiter_tenant_waiting_gangs{{{_TENANT}}})", "{{tenant}} {{pool}}"),
            ),
            text="Gangs that wait, by pool.",
        ),
        Panel(
            title="Waiting units",
            queries=(
                (
                    f"max by (tenant, pool, resource) (vkgateway_arbiter_tenant_waiting_units{{{_TENANT}}})",
                    "{{tenant}} {{pool}} {{resource}}",
                ),
            ),
            text="Units that waiting gangs request.",
        ),
        Panel(
            title="Evicted pods",
            queries=(
                (f"sum by (tenant) (increase(vkgateway_arbiter_evicted_pods_total{{{_TENANT}}}[1h]))", "{{tenant}}"),
            ),
            text="Pods that the arbiter evicted in the last hour.",
        ),
        Panel(
            title="Lost work",
            queries=(
                (
                    f"sum by (tenant) (increase(vkgateway_arbiter_lost_gpu_seconds_total{{{_TENANT}}}[1h])) / 3600",
                    "{{tenant}}",
                ),
            ),
            text="GPU-hours lost by evictions in the last hour, since the start or the last checkpoint.",
        ),
        Panel(
            title="Forwarded pods",
            queries=(
                (
                    f"sum by (tenant) (rate(vkgateway_pods_forwarded_total{{{_TENANT}}}[$__rate_interval]))",
                    "{{tenant}}",
                ),
            ),
            text="Pods created in compute clusters.",
            unit="ops",
        ),
        Panel(
            title="Failed pods",
            queries=(
                (
                    f"sum by (tenant, reason) (increase(vkgateway_pods_failed_total{{{_TENANT}}}[1h]))",
                    "{{tenant}} {{reason}}",
                ),
            ),
            text="Pods that the gateway set to Failed in the last hour, by reason.",
        ),
        Panel(
            title="Used part of monthly budgets",
            queries=(
                (
                    "max by (tenant, resource, pool) "
                    f"(vkgateway_budget_used_hours{{{_TENANT}}} / (vkgateway_budget_hours{{{_TENANT}}} > 0))",
                    "{{tenant}} {{resource}} {{pool}}",
                ),
            ),
            text="Part of each budget that is used in this UTC month. From 100 %, the tenant does not borrow. "
            "Budgets of 0 hours, which never allow borrowing, are left out.",
            unit="percentunit",
            thresholds=((0.8, "orange"), (1, "red")),
        ),
        Panel(
            title="Hours of monthly budgets",
            queries=(
                (
                    f"max by (tenant, resource, pool) (vkgateway_budget_used_hours{{{_TENANT}}})",
                    "{{tenant}} {{resource}} {{pool}} used",
                ),
                (
                    f"max by (tenant, resource, pool) (vkgateway_budget_hours{{{_TENANT}}})",
                    "{{tenant}} {{resource}} {{pool}} budget",
                ),
            ),
            text="Hours of each resource that are used in this UTC month, and the budget.",
        ),
        Panel(
            title="Time to the compute pod",
            queries=_percentiles("vkgateway_pod_forward_seconds", _TENANT),
            text="From the creation of a tenant pod to that of its compute pod, including the tenant's scheduler.",
            unit="s",
        ),
        Panel(
            title="Due objects",
            queries=((f"max by (tenant) (vkgateway_queue_depth{{{_TENANT}}})", "{{tenant}}"),),
            text="Objects that are due for reconciliation. Normal: near 0.",
        ),
    ),
)

CONTROL_PLANES: Final = Dashboard(
    name="control-planes",
    title="vkgateway / Control planes",
    variables={"tenant": "label_values(vkgateway_tenant_condition, tenant)"},
    panels=(
        Panel(
            title="Control planes that do not serve",
            queries=(
                (
                    "count(max by (tenant) "
                    f'(vkgateway_tenant_condition{{{_TENANT},condition="ControlPlaneReady"}}) == 0) or vector(0)',
                    "down",
                ),
            ),
            text="Tenants of which ControlPlaneReady is not True.",
            kind="stat",
            width=6,
        ),
        Panel(
            title="Read-only tenants",
            queries=(("max(vkgateway_datastore_held_tenants)", "read-only"),),
            text="Tenants whose writes are blocked because they were filling etcd.",
            kind="stat",
            width=6,
        ),
        Panel(
            title="Expiry of certificates",
            queries=(
                ("min by (certificate) (vkgateway_certificate_expiry_timestamp_seconds) - time()", "{{certificate}}"),
            ),
            text="Time until each certificate of the gateway expires.",
            kind="stat",
            unit="s",
        ),
        Panel(
            title="Control planes",
            queries=(
                (
                    f'max by (tenant, reason) (vkgateway_tenant_condition{{{_TENANT},condition="ControlPlaneReady"}})',
                    "",
                ),
            ),
            text="1: serves. Otherwise, the reason.",
            kind="table",
        ),
        Panel(
            title="Creation of tenants",
            queries=_percentiles("vkgateway_tenant_ready_seconds"),
            text="From the first reconciliation until the tenant is Ready.",
            unit="s",
        ),
        Panel(
            title="Size of etcd",
            queries=(("max by (what) (vkgateway_datastore_bytes)", "{{what}}"),),
            text="Bytes in use, of the file, and the quota. At the quota, no tenant can write.",
            unit="bytes",
        ),
        Panel(
            title="Requests of the gateway",
            queries=(
                (
                    "sum by (cluster, method) (rate(vkgateway_api_requests_total[$__rate_interval]))",
                    "{{cluster}} {{method}}",
                ),
            ),
            text="Requests to API servers by kind of cluster.",
            unit="reqps",
        ),
        Panel(
            title="Watches of the gateway",
            queries=(("sum by (cluster) (vkgateway_api_watches)", "{{cluster}}"),),
            text="Open watches by kind of cluster.",
        ),
    ),
)

DASHBOARDS: Final = (PLATFORM, TENANT, CONTROL_PLANES)
