"""The systemd units in deploy/systemd, and the page that tells how to use them."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.machine import patience
from vkgateway.planes.supervisor.spec import SupervisorPaths
from vkgateway.settings import file as settingsfile

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/systemd"
PROGRAMS = "/opt/vkgateway/.venv/bin"
DATA_DIR = "/var/lib/vkgateway"
UNITS = ("vkgateway-supervisor.service", "vkgateway.service")
OWN = {"ExecStart", "Restart", "RestartSec", "TimeoutStopSec", "Environment"}
"""In which the two may differ."""


def entries(unit: str) -> list[tuple[str, str, str]]:
    """Section, key and value of each line; a key may be there more than once."""
    found, section = [], ""
    for line in (FOLDER / unit).read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.append((section, key, value))
    return found


def values(unit: str, key: str) -> list[str]:
    return [value for _, name, value in entries(unit) if name == key]


def test_systemd_knows_every_line(tmp_path: Path) -> None:
    """Here its own program judges, which tells of unknown keys and values; the units' programs are elsewhere."""
    for unit in UNITS:
        text, replaced = re.subn(rf"(?m)^ExecStart={PROGRAMS}/\S+", "ExecStart=/bin/true", (FOLDER / unit).read_text())
        assert replaced == 1
        (tmp_path / unit).write_text(text)
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze on this machine")
    command = [analyze, "verify", "--man=no", *(str(tmp_path / unit) for unit in UNITS)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience(60))
    assert (completed.returncode, [line for line in completed.stderr.splitlines() if str(tmp_path) in line]) == (
        0,
        [],
    ), completed


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_one_that_can_be_parsed(unit: str) -> None:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.read(FOLDER / unit)
    assert parsed.sections() == ["Unit", "Service", "Install"]
    assert all(value or key in ("CapabilityBoundingSet", "AmbientCapabilities") for _, key, value in entries(unit))


def test_both_are_closed_in_alike() -> None:
    """The gateway and tenants' processes share user and folders: what one may, the other could have done for it."""
    first, second = ({one for one in entries(unit) if one[0] == "Service" and one[1] not in OWN} for unit in UNITS)
    assert first == second
    assert ("Service", "OOMPolicy", "continue") in first, "one process without memory would end all tenants'"


def test_the_supervisor_is_started_as_by_ourselves() -> None:
    _, *arguments = SupervisorPaths(Path(DATA_DIR)).command_line
    assert values(UNITS[0], "ExecStart") == [" ".join([f"{PROGRAMS}/python", *arguments])]


def test_the_gateway_uses_the_supervisors_data_directory() -> None:
    assert values(UNITS[1], "ExecStart") == [f"{PROGRAMS}/vkgateway serve"]
    environment = dict(one.split("=") for text in values(UNITS[1], "Environment") for one in text.split())
    assert environment["VKGATEWAY_DATA_DIR"] == DATA_DIR
    assert environment["VKGATEWAY_CONFIG"] == "/etc/vkgateway/gateway.yaml"
    assert {tuple(values(unit, "StateDirectory")) for unit in UNITS} == {(Path(DATA_DIR).name,)}
    assert UNITS[0] in values(UNITS[1], "After")[0].split()


def test_the_settings_on_the_page_are_settings(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/how-to/run-a-gateway.md").read_text(), re.DOTALL)
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    found = settingsfile.load_settings(file, environment={})
    assert found.address == "10.0.0.7"
    assert all((found.datastore.ca, found.datastore.ca_key, found.datastore.cert, found.datastore.key))


def test_the_page_names_what_is_there() -> None:
    page = (ROOT / "docs/how-to/run-a-gateway.md").read_text()
    named = re.findall(r"/opt/vkgateway/(deploy/[\w./-]*)", page)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert [unit for unit in UNITS if unit not in page] == []
