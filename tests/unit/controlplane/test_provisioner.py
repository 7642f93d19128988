"""A control plane is provisioned in steps; an interruption after any step leads to the same result."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import FakeClock
from tests.unit.controlplane.fakes import FakeDriver, FakeEtcd, FakeStore
from vkgateway.api.errors import ConflictError, InputError, UnavailableError
from vkgateway.api.objects import Meta
from vkgateway.api.types import ApiServerAccess, Tenant, TenantSpec
from vkgateway.kube import errors, kubeconfig
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CONFIG_MAPS, PRIORITY_CLASSES, Resource
from vkgateway.planes.access import ControlPlane
from vkgateway.planes.drivers.base import Driver, ServerEndpoint
from vkgateway.planes.drivers.driver_set import DriverSet
from vkgateway.planes.etcd.tenancy import Tenancy
from vkgateway.planes.kept_objects import KEPT_ANNOTATION
from vkgateway.planes.pki import common_name
from vkgateway.planes.plane_records import PlatformEndpoints
from vkgateway.planes.provisioner import Provisioner, Step
from vkgateway.planes.service_ranges import ServiceRanges
from vkgateway.planes.templates import SHIPPED_FOLDER, Templates

MAKING = (
    Step.TEMPLATE,
    Step.CREDENTIALS,
    Step.PROGRAMS,
    Step.DATASTORE,
    Step.PROCESSES,
    Step.OBJECTS,
    Step.SERVING,
)
REMOVING = (Step.STOPPING, Step.ERASING, Step.FORGETTING)


class Stopped(Exception):  # noqa: N818 - the gateway dies here
    pass


class World:
    """Everything that a provisioner works on; it outlives provisioners."""

    def __init__(self, server: FakeApiServer, folder: Path) -> None:
        self.server = server
        self.store = FakeStore()
        self.etcd = FakeEtcd()
        self.driver = FakeDriver()
        self.templates = _templates(folder)
        self.ranges: ServiceRanges | None = None
        self.taken_ranges: list[str] = []
        self.unserved: frozenset[str] = frozenset()
        self.clock = FakeClock(origin=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))

    def provisioner(self) -> Provisioner:
        return Provisioner(
            store=self.store,
            datastore=Tenancy(self.etcd),
            drivers=self.create_drivers(),
            templates=self.templates,
            endpoints=PlatformEndpoints(etcd=("https://10.0.0.1:2379",)),
            ranges=self.ranges,
            taken_ranges=lambda: self.taken_ranges,
            connect=self.connect,
            find_missing=self.find_missing,
            clock=self.clock,
        )

    def create_drivers(self) -> DriverSet:
        return DriverSet({"fake": self.create_driver()}, default="fake")

    def create_driver(self) -> Driver:
        return self.driver

    def connect(self, control_plane: ControlPlane) -> Client:
        assert common_name(control_plane.identity.cert_pem) == "vkgateway"
        return self.server.client(control_plane.tenant)

    async def find_missing(self, server: ServerEndpoint, *, ca: bytes, names: tuple[str, ...]) -> frozenset[str]:
        """Return the names that no API server of this world serves."""
        return self.unserved & frozenset(names)

    def keep_note(self) -> None:
        """Mark the template's ConfigMap as kept."""
        note = self.templates.folder / "default" / "objects" / "note.yaml.j2"
        note.write_text(
            note.read_text().replace("name: note", f"name: note, annotations: {{{KEPT_ANNOTATION}: 'yes'}}")
        )

    def left(self) -> list[object]:
        return [*self.store.records, *self.driver.running, *self.etcd.auth.users, *self.etcd.auth.roles]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with FakeApiServer() as server:
        yield World(server, tmp_path)


def _templates(folder: Path) -> Templates:
    """Return the shipped template with only the objects that the fake API server supports."""
    objects = folder / "default" / "objects"
    objects.mkdir(parents=True)
    shutil.copy(SHIPPED_FOLDER / "default" / "template.yaml", folder / "default")
    shutil.copy(SHIPPED_FOLDER / "default" / "objects" / "priority-classes.yaml.j2", objects)
    note = "{apiVersion: v1, kind: ConfigMap, metadata: {name: note, namespace: default}}"
    (objects / "note.yaml.j2").write_text(note)
    return Templates(folder)


def tenant(name: str = "alpha", *, port: int = 0, template: str = "default") -> Tenant:
    spec = TenantSpec(api_server=ApiServerAccess(port=port), template=template)
    return Tenant(metadata=Meta(name=name), spec=spec)


async def stop_at(reached: Step, step: Step) -> None:
    if step is reached:
        raise Stopped


async def test_provision_runs_all_steps_in_order(world: World) -> None:
    steps: list[Step] = []

    async def on_step(step: Step) -> None:
        steps.append(step)

    made = await world.provisioner().provision(tenant(), on_step=on_step)
    record = world.store.records["alpha"]
    assert steps == list(MAKING)
    assert made.url == f"https://10.0.0.1:{record.port}"
    assert world.etcd.auth.users == {"tenant-alpha": {"tenant-alpha"}}
    assert world.server.store.find(PRIORITY_CLASSES, "vkgateway-guaranteed") is not None
    handed_out = kubeconfig.parse(record.kubeconfig)
    assert handed_out["clusters"][0]["cluster"]["server"] == made.url
    client = made.create_client()
    assert (client.streaming_lists, client.single_server) == (False, True)


@pytest.mark.parametrize("step", MAKING)
async def test_interrupted_provision_continues_at_the_next_call(world: World, step: Step) -> None:
    with pytest.raises(Stopped):
        await world.provisioner().provision(tenant(), on_step=lambda reached: stop_at(step, reached))
    kept = world.store.records.get("alpha")
    made = await world.provisioner().provision(tenant())
    record = world.store.records["alpha"]
    assert made.port == record.port
    assert record.objects
    assert world.driver.starts == 1
    assert "alpha" in world.driver.running
    assert world.etcd.auth.users == {"tenant-alpha": {"tenant-alpha"}}
    if kept is not None:
        assert record.credentials.ca.cert_pem == kept.credentials.ca.cert_pem
        assert record.port == kept.port


async def test_second_provision_only_reads(world: World) -> None:
    await world.provisioner().provision(tenant())
    saves, changes, requests = world.store.saves, world.etcd.auth.changes, len(world.server.requests)
    await world.provisioner().provision(tenant())
    assert (world.store.saves, world.etcd.auth.changes, world.driver.starts) == (saves, changes, 1)
    assert {request.split()[0] for request in world.server.requests[requests:]} == {"GET"}


async def test_existing_control_plane_is_loaded_without_requests(world: World) -> None:
    made = await world.provisioner().provision(tenant())
    requests = len(world.server.requests)

    recalled = await world.provisioner().load_existing(tenant())

    assert recalled is not None
    assert replace(recalled, identity=made.identity) == made
    assert len(world.server.requests) == requests


async def test_new_tenant_gets_a_unique_service_range_and_keeps_it(world: World) -> None:
    world.ranges = ServiceRanges.parse("10.160.0.0/22", prefix=24)
    made = {name: await world.provisioner().provision(tenant(name)) for name in ("a", "b")}
    assert len({plane.service_range for plane in made.values()}) == 2
    plane, _ = world.driver.running["a"]
    assert plane.service_cidr == made["a"].service_range == world.store.records["a"].service_range
    assert plane.server_ips[-1] == made["a"].service_range.replace("0/24", "1")
    world.ranges = ServiceRanges.parse("10.170.0.0/22", prefix=24)
    again = await world.provisioner().provision(tenant("a"))
    recalled = await world.provisioner().load_existing(tenant("a"))
    assert recalled is not None
    assert made["a"].service_range == again.service_range == recalled.service_range


async def test_tenant_without_a_service_range_keeps_its_templates_range(world: World) -> None:
    await world.provisioner().provision(tenant())
    world.ranges = ServiceRanges.parse("10.160.0.0/22", prefix=24)
    made = await world.provisioner().provision(tenant())
    assert made.service_range == ""
    assert world.driver.running["alpha"][0].service_cidr == "10.96.0.0/16"
    assert world.driver.starts == 1


async def test_changed_range_in_the_template_applies_to_new_tenants_only(world: World) -> None:
    await world.provisioner().provision(tenant("a"))
    file = world.templates.folder / "default" / "template.yaml"
    file.write_text(file.read_text().replace("10.96.0.0/16", "10.97.0.0/16"))
    await world.provisioner().provision(tenant("a"))
    await world.provisioner().provision(tenant("b"))
    assert world.driver.running["a"][0].service_cidr == "10.96.0.0/16"
    assert world.driver.running["b"][0].service_cidr == "10.97.0.0/16"


async def test_taken_ranges_are_skipped_and_the_templates_range_is_the_fallback(world: World) -> None:
    world.ranges = ServiceRanges.parse("10.160.0.0/23", prefix=24)
    world.taken_ranges = ["10.160.0.0/24", "fd00::/64"]
    provisioner = world.provisioner()
    assert (await provisioner.provision(tenant("a"))).service_range == "10.160.1.0/24"
    assert (await provisioner.provision(tenant("b"))).service_range == ""
    assert world.driver.running["b"][0].service_cidr == "10.96.0.0/16"


@pytest.mark.parametrize("step", MAKING[:-1])
async def test_unfinished_control_plane_is_not_loaded(world: World, step: Step) -> None:
    with pytest.raises(Stopped):
        await world.provisioner().provision(tenant(), on_step=lambda reached: stop_at(step, reached))

    assert await world.provisioner().load_existing(tenant()) is None


@pytest.mark.parametrize("made_until", [*MAKING, None])
@pytest.mark.parametrize("removed_until", [*REMOVING, None])
async def test_deprovision_leaves_nothing_after_any_interruption(
    world: World, made_until: Step | None, removed_until: Step | None
) -> None:
    if made_until is None:
        await world.provisioner().provision(tenant())
    else:
        with pytest.raises(Stopped):
            await world.provisioner().provision(tenant(), on_step=lambda at: stop_at(made_until, at))
    if removed_until is not None:
        with pytest.raises(Stopped):
            await world.provisioner().deprovision("alpha", on_step=lambda at: stop_at(removed_until, at))
    await world.provisioner().deprovision("alpha")
    assert world.left() == []


async def test_deprovision_does_not_affect_other_tenants(world: World) -> None:
    await world.provisioner().provision(tenant("a"))
    await world.provisioner().provision(tenant("a-b"))
    await world.etcd.keys.put("/tenants/a-b/x", b"")
    await world.provisioner().deprovision("a")
    assert list(world.store.records) == list(world.driver.running) == ["a-b"]
    assert list(world.etcd.auth.users) == ["tenant-a-b"]
    assert list(world.etcd.keys.held) == [b"/tenants/a-b/x"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "a--b", "A"])
async def test_invalid_tenant_name_is_never_used(world: World, name: str) -> None:
    with pytest.raises(InputError, match="tenant name"):
        await world.provisioner().provision(tenant(name))
    world.driver.running["bystander"] = (None, "")  # type: ignore[assignment]
    await world.provisioner().deprovision(name, on_step=lambda step: stop_at(step, step))
    assert world.left() == ["bystander"]


async def test_unknown_template_is_an_error_that_lists_the_available_ones(world: World) -> None:
    with pytest.raises(InputError, match="'big'") as caught:
        await world.provisioner().provision(tenant(template="big"))
    assert "default" in caught.value.hint
    assert world.left() == []


async def test_port_of_another_tenant_is_refused_before_anything_is_created(world: World) -> None:
    world.store.take("beta", port=20001)
    with pytest.raises(ConflictError, match=r"port 20001 belongs to tenant 'beta'"):
        await world.provisioner().provision(tenant(port=20001))
    assert world.left() == ["beta"]


async def test_changed_port_in_the_spec_is_applied(world: World) -> None:
    await world.provisioner().provision(tenant())
    authority = world.store.records["alpha"].credentials.ca.cert_pem
    made = await world.provisioner().provision(tenant(port=20007))
    record = world.store.records["alpha"]
    assert made.port == record.port == world.driver.running["alpha"][0].port == 20007
    assert ":20007" in record.kubeconfig
    assert record.credentials.ca.cert_pem == authority


async def test_admin_certificate_is_renewed_before_it_expires(world: World) -> None:
    world.clock = FakeClock(origin=datetime.datetime.now(datetime.UTC))
    await world.provisioner().provision(tenant())
    before = world.store.records["alpha"]
    world.clock.seconds += datetime.timedelta(days=300).total_seconds()
    await world.provisioner().provision(tenant())
    after = world.store.records["alpha"]
    assert after.credentials.admin != before.credentials.admin
    assert after.kubeconfig != before.kubeconfig
    assert after.credentials.ca.cert_pem == before.credentials.ca.cert_pem


async def test_first_of_two_replicas_determines_the_credentials(world: World) -> None:
    other = await world.provisioner().provision(tenant())
    theirs = world.store.records["alpha"]

    class LateStore(FakeStore):
        async def load(self, tenant: str) -> None:
            return None

    late = LateStore(records=world.store.records)
    world.store = late
    made = await world.provisioner().provision(tenant())
    assert made.ca == other.ca
    assert late.records["alpha"].credentials.ca.cert_pem == theirs.credentials.ca.cert_pem


async def test_provision_reports_why_the_api_server_does_not_run(world: World) -> None:
    world.server.fail("GET", "/readyz", status=500, times=10_000)
    world.driver.failure = "tenant/alpha/apiserver does not stay up: no space left on device"
    with pytest.raises(UnavailableError, match="no space left"):
        await world.provisioner().provision(tenant())


async def test_provision_fails_if_the_api_server_is_not_ready_in_time(world: World) -> None:
    world.server.fail("GET", "/readyz", status=500, times=10_000)
    with pytest.raises(UnavailableError, match="'alpha' is not ready after 60 s"):
        await world.provisioner().provision(tenant())
    assert world.clock.seconds >= 60


async def test_objects_are_retried_until_their_namespace_exists(world: World) -> None:
    world.server.fail("PATCH", "/configmaps/", status=404, times=2)
    await world.provisioner().provision(tenant())
    assert world.store.records["alpha"].objects


@pytest.mark.parametrize("step", [Step.PROCESSES, Step.OBJECTS])
async def test_tenant_without_data_gets_its_initial_objects_again(world: World, step: Step) -> None:
    await world.provisioner().provision(tenant())
    world.etcd.auth.users.clear()  # as after a restore of etcd from a backup older than the tenant
    world.etcd.auth.roles.clear()
    world.server.store.delete(PRIORITY_CLASSES, "vkgateway-guaranteed")
    with pytest.raises(Stopped):
        await world.provisioner().provision(tenant(), on_step=lambda reached: stop_at(step, reached))
    await world.provisioner().provision(tenant())
    assert world.server.store.find(PRIORITY_CLASSES, "vkgateway-guaranteed") is not None
    assert world.store.records["alpha"].objects


async def test_refused_objects_do_not_delay_an_existing_tenant(world: World) -> None:
    await world.provisioner().provision(tenant())
    record = world.store.records["alpha"]
    world.store.records["alpha"] = replace(record, objects="of another template")
    world.server.fail("PATCH", "/priorityclasses/", status=403, times=10)
    await world.provisioner().provision(tenant())
    assert world.store.records["alpha"].objects == "of another template"


async def test_refused_objects_fail_the_first_provision(world: World) -> None:
    world.server.fail("PATCH", "/priorityclasses/", status=403, times=10)
    with pytest.raises(errors.Forbidden):
        await world.provisioner().provision(tenant())


async def test_provision_restores_kept_objects(world: World) -> None:
    world.keep_note()
    await world.provisioner().provision(tenant())
    world.server.store.delete(CONFIG_MAPS, "note", "default")
    world.server.store.delete(PRIORITY_CLASSES, "vkgateway-low")

    await world.provisioner().provision(tenant())

    assert world.server.store.find(CONFIG_MAPS, "note", "default") is not None
    assert world.server.store.find(PRIORITY_CLASSES, "vkgateway-low") is None


async def test_kept_objects_are_restored_between_provisions(world: World) -> None:
    world.keep_note()
    made = await world.provisioner().provision(tenant())
    world.server.store.delete(CONFIG_MAPS, "note", "default")
    before = len(world.server.requests)

    async with world.server.client() as client:
        await world.provisioner().restore_kept_objects(
            tenant(), client=client, endpoint=ServerEndpoint(made.address, made.port)
        )

    assert world.server.store.find(CONFIG_MAPS, "note", "default") is not None
    written = [request for request in world.server.requests[before:] if not request.startswith("GET")]
    assert len(written) == 1
    assert "note" in written[0]


async def test_obsolete_gate_is_deleted_and_a_failed_deletion_delays_nothing(
    world: World,
) -> None:
    webhooks = Resource(
        "apis/admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        namespaced=False,
    )
    world.server.register(webhooks)
    await world.provisioner().provision(tenant())
    metadata = {"name": "vkgateway-admission", "annotations": {KEPT_ANNOTATION: "true"}}
    document = {"apiVersion": webhooks.api_version, "kind": webhooks.kind, "metadata": metadata}
    world.server.store.create(webhooks, document)
    world.server.fail("DELETE", "/mutatingwebhookconfigurations/", status=403)

    assert await world.provisioner().provision(tenant())
    assert len(world.server.store.all(webhooks)) == 1

    await world.provisioner().provision(tenant())
    assert world.server.store.all(webhooks) == []


async def test_failed_restore_delays_nothing(world: World) -> None:
    world.keep_note()
    await world.provisioner().provision(tenant())
    world.server.store.delete(CONFIG_MAPS, "note", "default")
    world.server.fail("PATCH", "/configmaps/", status=403, times=10)

    assert await world.provisioner().provision(tenant())


def test_templates_ship_with_the_package() -> None:
    checkout = Path(__file__).parents[3] / "tenant_templates"
    assert Templates(checkout).list_names() == Templates().list_names()
