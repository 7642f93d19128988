"""Renewal of the platform's certificates that expire soon, while everything runs."""

from __future__ import annotations

import datetime
from pathlib import Path

from vkgateway.planes.supervisor.client import SupervisorClient
from vkgateway_platform.embedded import compute, real_node_steps
from vkgateway_platform.embedded import record as records
from vkgateway_platform.embedded.disk import disk_errors
from vkgateway_platform.embedded.hollow import kwok
from vkgateway_platform.embedded.hollow.kubelet import process as hollow_kubelet
from vkgateway_platform.embedded.lock import work_lock
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import certificates_to_renew, ensure_pki
from vkgateway_platform.embedded.provisioner import process as provisioner
from vkgateway_platform.embedded.record import PlatformRecord


async def renew_certificates(data_dir: Path, *, supervisor: SupervisorClient, now: datetime.datetime) -> list[str]:
    """Renew the certificates with less than a third of their lifetime left at `now` (aware); return their names.

    Most processes read them again by themselves; KWOK and the hollow kubelet are restarted.

    Raises:
        ConflictError: `up` or `down` is running.
        VkgatewayError: keys are damaged, the disk is full, or the supervisor does not answer.
    """
    paths = PlatformPaths(data_dir)
    due = certificates_to_renew(paths, now=now)
    if not due:
        return []
    with disk_errors(data_dir), work_lock(paths.lock_path, command="renewal"):
        record = records.load_record(paths.record_path)
        if record is None:
            return []
        # Checked first: if the supervisor failed later, these two would keep old certificates, and no later check would
        # notice.
        running = {state.name: state for state in await supervisor.list_processes(compute.GROUP)}
        _write_certificates(paths, record, now=now)
        port = record.ports["hollow-kubelet"]
        if (state := running.get(kwok.NAME)) is not None:
            await supervisor.ensure_process(kwok.prepare_process(paths, port=port, program=Path(state.argv[0])))
        if hollow_kubelet.NAME in running:
            await supervisor.ensure_process(hollow_kubelet.process_spec(paths, port=port))
    return due


def _write_certificates(paths: PlatformPaths, record: PlatformRecord, *, now: datetime.datetime) -> None:
    pki = ensure_pki(paths, now=now)
    compute.write_plane(paths, record=record, pki=pki, now=now)
    shape = compute.plane_spec(record)
    provisioner.write_kubeconfig(paths, plane=shape, pki=pki)
    if record.real_node_why_not is None:
        real_node_steps.renew_node(
            paths.node_dir, number=record.number, api_server=shape.server_url, authority=pki.compute.ca
        )
