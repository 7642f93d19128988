"""Tests of the daemon's settings."""

from pathlib import Path

import pytest
import yaml

from vkgateway.api.errors import InputError
from vkgateway.settings import config
from vkgateway.settings import file as settingsfile
from vkgateway.settings.validation import parse_half_life


def written(folder: Path, text: str) -> Path:
    file = folder / "gateway.yaml"
    file.write_text(text)
    return file


def test_defaults_apply_without_file() -> None:
    assert settingsfile.load_settings(environment={}) == config.Config()


def test_environment_overrides_file_and_file_overrides_defaults(tmp_path: Path) -> None:
    file = written(tmp_path, "address: 10.0.0.1\nkubelet: {port: 1}\ndatastore: {endpoints: ['https://a']}\n")

    found = settingsfile.load_settings(
        file,
        environment={"VKGATEWAY_KUBELET_PORT": "2", "VKGATEWAY_DATASTORE_ENDPOINTS": "https://b,https://c"},
    )

    assert found.address == "10.0.0.1"
    assert found.kubelet.port == 2
    assert found.datastore.endpoints == ("https://b", "https://c")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kubelet: {port: 70000}", "kubelet.port: .* <= 65535; the value is 70000"),
        ("kubelet: {port: many}", "kubelet.port: .*; the value is 'many'"),
        ("datastore: {endpoints: [a, 1]}", r"datastore.endpoints\[1\]: .*; the value is 1"),
        ("kubelet:", "kubelet: .*; the value is None"),
        ("1: 2", "has a key that is not a string"),
        ("kubelet: {1: 2}", "kubelet has a key that is not a string"),
        ("arbiter: {noticeSeconds: .inf}", "arbiter.noticeSeconds: .*; the value is inf"),
        ("kubelet: {prot: 1}", "prot"),
        ("nodes: {leaseSeconds: 0}", "nodes.leaseSeconds"),
        ("logging: {level: loud}", "logging.level: expected one of debug, info, warning, error; the value is 'loud'"),
        ("controlPlanes: {driver: pods}", "controlPlanes.driver: driver 'pods' does not exist"),
        ("controlPlanes: {otherDrivers: {pods: {}}}", "controlPlanes.otherDrivers.pods: driver 'pods' does not exist"),
        ("- a list", "contains a list"),
        ("{", "not valid YAML"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(InputError, match=complaint) as caught:
        settingsfile.load_settings(file, environment={})
    assert str(file) in str(caught.value)


def test_errors_name_key_of_invalid_variable() -> None:
    with pytest.raises(InputError, match=r"kubelet\.port"):
        settingsfile.load_settings(environment={"VKGATEWAY_KUBELET_PORT": "http"})


def test_variable_of_service_link_is_explained() -> None:
    """Kubernetes sets VKGATEWAY_KUBELET_PORT in pods if their namespace has a Service vkgateway-kubelet."""
    with pytest.raises(InputError, match=r"^VKGATEWAY_KUBELET_PORT: kubelet\.port: .*tcp://10\.96\.0\.1:443") as caught:
        settingsfile.load_settings(environment={"VKGATEWAY_KUBELET_PORT": "tcp://10.96.0.1:443"})
    assert "enableServiceLinks: false" in caught.value.hint


def test_errors_name_variable_instead_of_file(tmp_path: Path) -> None:
    file = written(tmp_path, "kubelet: {port: 1}")
    with pytest.raises(InputError, match=r"^VKGATEWAY_KUBELET_PORT: kubelet\.port: .*; the value is 'http'"):
        settingsfile.load_settings(file, environment={"VKGATEWAY_KUBELET_PORT": "http"})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "leaderElection: {renewSeconds: 4}",
            "leaderElection.renewSeconds: 4 plus retrySeconds (0.5) exceeds 3.6 s: four fifths of leaseSeconds (5)",
        ),
        ("nodes: {renewSeconds: 40}", "nodes.renewSeconds: 40 is not less than nodes.leaseSeconds (40):"),
        ("address: gateway.example", "address: 'gateway.example' is not an IP address"),
        ("address: 127.0.0.1", "address: API servers refuse to call virtual nodes at 127.0.0.1"),
        ("address: '::'", "address: API servers refuse to call virtual nodes at ::"),
        (
            "address: 0.0.0.0",
            "address: API servers refuse to call virtual nodes at 0.0.0.0, and kubelet.advertiseAddress",
        ),
        (
            "{address: '::', kubelet: {advertiseAddress: a.example}}",
            "address: API servers of the driver process cannot",
        ),
        ("kubelet: {advertiseAddress: '0.0.0.0'}", "kubelet.advertiseAddress: API servers refuse to call"),
        ("kubelet: {advertiseAddress: 'https://a'}", "kubelet.advertiseAddress: 'https://a' is neither an IP address"),
        (
            "datastore: {ca: a, key: b, managed: {secretPrefix: etcd}}",
            "datastore.managed.secretPrefix: 'etcd', but datastore.ca, datastore.key name certificate files",
        ),
        ("datastore: {managed: {secretPrefix: Etcd}}", "datastore.managed.secretPrefix: 'Etcd' is not"),
        ("datastore: {managed: {serverNames: [a, '*.*.b']}}", "datastore.managed.serverNames[1]: '*.*.b' is neither"),
        ("datastore: {endpoints: ['https://a:1', 'ftp://b']}", "datastore.endpoints[1]: etcd endpoint 'ftp://b' is"),
        ("datastore: {endpoints: ['10.0.0.1:2379']}", "datastore.endpoints[0]: etcd endpoint '10.0.0.1:2379' is"),
        ("names: {forwarder: dns.example:53}", "names.forwarder: 'dns.example:53' is not an IP address with a port"),
        ("names: {sources: [10.214.0.1/24]}", "names.sources[0]: '10.214.0.1/24' is not a CIDR"),
        ("names: {forwarder: 10.0.0.2}", "names.forwarder: '10.0.0.2' is not"),
        ("names: {forwarder: '10.0.0.2:70000'}", "names.forwarder: '10.0.0.2:70000' is not"),
        ("controlPlanes: {webhookRanges: [10.0.0.0/8, ten]}", "controlPlanes.webhookRanges[1]: 'ten' is not a CIDR"),
        (
            "controlPlanes: {driver: kubernetes, webhookRanges: [10.0.0.0/8]}",
            "controlPlanes.webhookRanges: the driver kubernetes does not use it",
        ),
        ("arbiter: {halfLife: 5s}", "arbiter.halfLife: '5s' is not a half-life from 1m to 90d"),
        ("arbiter: {halfLife: -24h}", "arbiter.halfLife: '-24h' is not a half-life"),
        ("arbiter: {halfLife: 1y}", "arbiter.halfLife: '1y' is not a half-life"),
        ("arbiter: {halfLife: 100d}", "arbiter.halfLife: '100d' is not a half-life"),
        ("services: {range: ten}", "services.range: 'ten' does not appear to be"),
        ("services: {tenantPrefix: 9}", "services.tenantPrefix: 9 is not from 12 to 28, as 10.160.0.0/11 needs"),
        ("services: {range: 'fd00:1::/48'}", "services.tenantPrefix: 20 is not from 108 to 124"),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        settingsfile.load_settings(file, environment={})
    assert str(caught.value).startswith(f"{file}: {complaint}")
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "names: {forwarder: '[fd00::2]:53'}",
        "controlPlanes: {webhookRanges: [10.20.0.0/16, 127.0.0.1/32, 'fd12::/64']}",
        "controlPlanes: {driver: kubernetes, otherDrivers: {process: {}}, webhookRanges: [10.20.0.0/16]}",
        "services: {range: '', tenantPrefix: 1}",
        "arbiter: {halfLife: 0}",
        "arbiter: {halfLife: 90d}",
        "arbiter: {halfLife: 86400}",
        "services: {range: 'fd00:1::/48', tenantPrefix: 112}",
        "address: 'fd00::1'",
        "{address: 0.0.0.0, kubelet: {advertiseAddress: a.b.svc}, controlPlanes: {driver: kubernetes}}",
        "{address: '::', kubelet: {advertiseAddress: 'fd00::1'}, controlPlanes: {driver: kubernetes}}",
        "{address: 10.0.0.1, kubelet: {advertiseAddress: 192.0.2.1, advertisePort: 10250}}",
        "datastore: {managed: {secretPrefix: vkgateway-etcd, serverNames: ['*.etcd.vkgateway-system.svc', 10.0.0.1]}}",
    ],
)
def test_valid_settings_are_accepted(tmp_path: Path, text: str) -> None:
    settingsfile.load_settings(written(tmp_path, text), environment={})


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86_400), ("0", 0), ("0s", 0), ("3600", 3600), ("1d12h", 129_600)]
)
def test_half_life_is_a_duration(text: str, seconds: float) -> None:
    config = settingsfile.load_settings(environment={"VKGATEWAY_ARBITER_HALF_LIFE": text})
    assert parse_half_life(config.arbiter.half_life) == seconds


def test_errors_name_invalid_variable(tmp_path: Path) -> None:
    file = written(tmp_path, "names: {forwarder: '10.0.0.2:53'}")
    with pytest.raises(InputError, match=r"^VKGATEWAY_NAMES_FORWARDER: names\.forwarder: 'here' is not"):
        settingsfile.load_settings(file, environment={"VKGATEWAY_NAMES_FORWARDER": "here"})
    with pytest.raises(InputError, match=r"^nodes\.renewSeconds: 10 is not less than nodes\.leaseSeconds"):
        settingsfile.load_settings(environment={"VKGATEWAY_NODES_LEASE_SECONDS": "5"})


def test_missing_settings_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        settingsfile.load_settings(tmp_path / "none.yaml", environment={})


def test_numbers_in_file_must_not_be_strings(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"kubelet\.port"):
        settingsfile.load_settings(written(tmp_path, "kubelet: {port: '1'}"), environment={})


def test_printed_settings_can_be_loaded(tmp_path: Path) -> None:
    changed = settingsfile.load_settings(environment={"VKGATEWAY_KUBELET_PORT": "7", "VKGATEWAY_ADDRESS": "fd00::1"})
    assert (
        settingsfile.load_settings(written(tmp_path, settingsfile.render_settings(changed)), environment={}) == changed
    )


def test_nested_sections_and_parameters_are_printed(tmp_path: Path) -> None:
    parameters = {"registry": "r" * 90, "pod": {"nodeSelector": {"a": "b"}, "replicas": 3, "list": [1, "two"]}}
    wanted = config.Config(
        datastore=config.Datastore(
            enable_auth=True, managed=config.ManagedDatastore(secret_prefix="etcd", server_names=("a", "*.b"))
        ),
        control_planes=config.ControlPlanes(driver="kubernetes", parameters=parameters),
    )
    file = written(tmp_path, settingsfile.render_settings(wanted))
    assert settingsfile.load_settings(file, environment={}) == wanted


def test_parameters_are_read_from_environment() -> None:
    variable = "VKGATEWAY_CONTROL_PLANES_PARAMETERS"
    flat = settingsfile.load_settings(environment={variable: "registry=a.example,replicas=2"})
    assert flat.control_planes.parameters == {"registry": "a.example", "replicas": "2"}
    nested = settingsfile.load_settings(environment={variable: '{"pod": {"tolerations": [{"key": "a"}]}}'})
    assert nested.control_planes.parameters == {"pod": {"tolerations": [{"key": "a"}]}}
    with pytest.raises(InputError, match=rf"^{variable}: controlPlanes\.parameters: invalid JSON"):
        settingsfile.load_settings(environment={variable: "{pod: 1}"})


def test_nested_section_is_read_from_environment() -> None:
    found = settingsfile.load_settings(
        environment={
            "VKGATEWAY_DATASTORE_MANAGED_SECRET_PREFIX": "etcd",
            "VKGATEWAY_DATASTORE_ENABLE_AUTH": "true",
            "VKGATEWAY_MANAGEMENT_CLUSTER_INSTALL_DEFINITIONS": "false",
        }
    )
    assert found.datastore.managed.secret_prefix == "etcd"
    assert found.datastore.enable_auth
    assert not found.management_cluster.install_definitions


def test_every_setting_has_description_and_unique_variable() -> None:
    found = list(config.iterate_settings())
    assert all(setting.description.endswith(".") for setting in found)
    assert len({setting.variable for setting in found}) == len(found)
    assert all(setting.variable in settingsfile.render_settings() for setting in found)
    assert {setting.path[0] for setting in found} == set(yaml.safe_load(settingsfile.render_settings()))


def test_documentation_lists_all_settings() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"
    assert settingsfile.settings_table() in page.read_text()
