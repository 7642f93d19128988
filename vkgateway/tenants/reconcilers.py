"""The reconcilers of one tenant: what each needs, and their order in the registry."""

from __future__ import annotations

from vkgateway.kinds.budgets.reconciler import DisruptionBudgetReconciler
from vkgateway.kinds.configs.reconciler import CopyReconciler
from vkgateway.kinds.events.reconciler import EventMirror
from vkgateway.kinds.namespaces.reconciler import NamespaceReconciler
from vkgateway.kinds.pods.deleter import PodDeleter
from vkgateway.kinds.pods.event_handler import PodEventHandler
from vkgateway.kinds.pods.forwarder import PodForwarder
from vkgateway.kinds.pods.mirror import PodMirror, ReplacedPods
from vkgateway.kinds.pods.pod_context import PodPreparer
from vkgateway.kinds.pods.reconciler import Executor, PodReconciler
from vkgateway.kinds.pods.startups import PodStartups
from vkgateway.kinds.policies.reconciler import NetworkPolicyReconciler
from vkgateway.kinds.registry import Reconciler
from vkgateway.kinds.services.name_service import NameService
from vkgateway.kinds.services.platform_service import ApiServers, NameServers, Resolvers
from vkgateway.kinds.services.reconciler import ServiceReconciler
from vkgateway.kinds.services.service_cidr import TenantServiceCidr
from vkgateway.kinds.services.tenant_services import TenantServices
from vkgateway.kinds.sweeper import Sweeper
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.tokens.reconciler import ServiceAccountTokens
from vkgateway.kinds.volumes.claim_users import ClaimUsers
from vkgateway.kinds.volumes.reconciler import VolumeReconciler
from vkgateway.kinds.volumes.storage_classes import StorageClassReconciler
from vkgateway.kinds.volumes.tenant_volumes import TenantVolumes
from vkgateway.scheduler.service.controller import AdmissionController, ArbiterService


class TenantReconcilers:
    """All reconcilers of one tenant. A new kind of object needs its reconciler here and in `in_order`."""

    def __init__(
        self,
        scope: TenantScope,
        *,
        arbiter: ArbiterService,
        name_servers: NameServers | None,
        api_servers: ApiServers | None,
    ) -> None:
        own_range = TenantServiceCidr(scope)
        resolvers = Resolvers(scope, name_servers, own_range=own_range)
        self.policies = NetworkPolicyReconciler(scope, resolvers)
        self.namespaces = NamespaceReconciler(scope, self.policies)
        self.tenant_services = TenantServices(scope)
        self.services = ServiceReconciler(scope, self.tenant_services, namespaces=self.namespaces, own_range=own_range)
        self.name_service = NameService(
            scope,
            resolvers,
            self.tenant_services,
            services=self.services,
            own_range=own_range,
            api_servers=api_servers,
        )
        self.budgets = DisruptionBudgetReconciler(scope)
        self.tenant_volumes = TenantVolumes(scope)
        self.claim_users = ClaimUsers(scope, self.tenant_volumes)
        self.classes = StorageClassReconciler(scope)
        self.volumes = VolumeReconciler(scope, self.tenant_volumes, namespaces=self.namespaces)
        self.copies = CopyReconciler(scope)
        self.tokens = ServiceAccountTokens(scope)
        self.event_mirror = EventMirror(scope)
        self.startups = PodStartups(scope)
        mirror = PodMirror(scope)
        forwarder = PodForwarder(
            scope,
            mirror,
            namespaces=self.namespaces,
            copies=self.copies,
            tokens=self.tokens,
            name_service=self.name_service,
        )
        self.admission = AdmissionController(scope, arbiter, reader=mirror, volumes=self.claim_users)
        self.executor = Executor(
            mirror,
            forwarder,
            deleter=PodDeleter(scope, arbiter),
            replaced=ReplacedPods(scope, mirror),
            notifier=self.admission,
        )
        self.pod_events = PodEventHandler(scope, self.executor)
        self.preparer = PodPreparer(
            scope,
            mirror,
            copies=self.copies,
            tokens=self.tokens,
            claims=self.claim_users,
            admission=self.admission,
        )
        self.pods = PodReconciler(scope, self.executor, preparer=self.preparer, admission=self.admission)
        self.sweeper = Sweeper(
            scope, copies=self.copies, tokens=self.tokens, namespaces=self.namespaces, classes=self.classes
        )

    def in_order(self) -> list[Reconciler]:
        """Return the reconcilers in the order in which they are notified of a change."""
        return [
            self.admission,
            self.pod_events,
            self.pods,
            self.copies,
            self.event_mirror,
            self.startups,
            self.sweeper,
            self.namespaces,
            self.tenant_services,
            self.services,
            self.policies,
            self.name_service,
            self.budgets,
            self.tenant_volumes,
            self.classes,
            self.volumes,
            self.claim_users,
        ]
