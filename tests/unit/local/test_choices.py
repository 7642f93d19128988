"""Choices of a platform: number, address, ports and options, kept from one start to the next."""

from pathlib import Path

import pytest

from vkgateway.api.errors import ConflictError, InputError
from vkgateway_platform.embedded import choices
from vkgateway_platform.embedded.choices import MachineState
from vkgateway_platform.embedded.options import PORTS, UpOptions
from vkgateway_platform.embedded.record import PlatformRecord

AS_ROOT = MachineState(interfaces={"lo": "", "eth0": ""})
AS_USER = MachineState(own_interface=False, primary_address="192.0.2.7")


def settle(record: PlatformRecord, options: UpOptions) -> PlatformRecord:
    merged = choices.merge_options(record, options)
    return choices.choose_ports(merged, options, surroundings=AS_ROOT, free=lambda _address, _port: True)


def test_root_gets_a_new_interface() -> None:
    placed = choices.assign_address(PlatformRecord(), surroundings=AS_ROOT)
    assert (placed.number, placed.interface, placed.address) == (0, "vkg0", "10.213.0.1")


def test_number_of_another_platform_is_not_reused() -> None:
    surroundings = MachineState(interfaces={"vkg0": "vkgateway /a", "vkgv1": ""})
    assert choices.assign_address(PlatformRecord(), surroundings=surroundings).number == 2


def test_ordinary_user_gets_the_machines_address() -> None:
    placed = choices.assign_address(PlatformRecord(), surroundings=AS_USER)
    assert (placed.interface, placed.address) == ("", "192.0.2.7")


def test_platform_keeps_its_address() -> None:
    record = PlatformRecord(number=3, interface="vkg3", address="10.213.3.1")
    assert choices.assign_address(record, surroundings=AS_ROOT) is record


def test_ordinary_user_cannot_start_a_platform_of_root() -> None:
    record = PlatformRecord(number=3, interface="vkg3", address="10.213.3.1")
    with pytest.raises(ConflictError, match="network interface vkg3, which only root"):
        choices.assign_address(record, surroundings=AS_USER)


def test_changed_machine_address_is_an_error() -> None:
    record = PlatformRecord(address="192.0.2.1")
    with pytest.raises(ConflictError, match=r"listens at 192\.0\.2\.1, but the machine's address is now 192\.0\.2\.7"):
        choices.assign_address(record, surroundings=AS_USER)


def test_every_port_is_chosen() -> None:
    assert settle(PlatformRecord(address="10.213.0.1"), UpOptions()).ports == dict(PORTS)


def test_options_are_remembered() -> None:
    first = settle(PlatformRecord(), UpOptions(real_node="no", durable=False, hollow_nodes={"a100": 9}))
    again = settle(first, UpOptions())
    assert again == first
    assert (again.real_node, again.durable, again.hollow_nodes) == ("no", False, {"a100": 9, "v100": 2})


def test_a_folder_of_templates_is_remembered_until_another_is_named() -> None:
    first = settle(PlatformRecord(), UpOptions(templates_dir=Path("/mine")))
    assert (PlatformRecord().templates_dir, first.templates_dir) == ("", "/mine")
    assert settle(first, UpOptions()).templates_dir == "/mine"
    assert settle(first, UpOptions(templates_dir=Path("/other"))).templates_dir == "/other"


def test_folders_of_programs_are_remembered_until_others_are_named() -> None:
    first = settle(PlatformRecord(), UpOptions(program_dirs=(Path("/mine"), Path("/more"))))
    assert settle(first, UpOptions()).program_dirs == ("/mine", "/more")
    assert settle(first, UpOptions(program_dirs=(Path("/other"),))).program_dirs == ("/other",)


def test_ranges_of_webhooks_are_remembered_until_they_are_removed() -> None:
    first = settle(PlatformRecord(), UpOptions(webhook_ranges=("127.0.0.1/32",)))
    assert settle(first, UpOptions()).webhook_ranges == ("127.0.0.1/32",)
    assert settle(first, UpOptions(webhook_ranges=())).webhook_ranges == ()


def test_options_override_the_record() -> None:
    first = settle(PlatformRecord(), UpOptions(real_node="no"))
    assert settle(first, UpOptions(real_node="auto")).real_node == "auto"


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"h100": 1}, "pool 'h100' of hollow nodes does not exist"),
        ({"a100": -1}, "-1 hollow nodes"),
        ({"a100": 5001}, "5001 hollow nodes"),
        ({"v100": 10**18}, "hollow nodes"),
    ],
)
def test_invalid_hollow_nodes_are_refused(asked: dict[str, int], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        settle(PlatformRecord(), UpOptions(hollow_nodes=asked))
