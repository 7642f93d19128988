"""Renewing what ends of the platform's certificates while all runs: the part of `up` that only time calls for."""

from __future__ import annotations

import datetime
from pathlib import Path

from vkgateway.local import compute, real_node_steps
from vkgateway.local import record as records
from vkgateway.local.disk import disk_errors
from vkgateway.local.hollow import kwok
from vkgateway.local.hollow import process as hollow
from vkgateway.local.hollow.kubelet import process as hollow_kubelet
from vkgateway.local.lock import work_lock
from vkgateway.local.paths import PlatformPaths
from vkgateway.local.pki import certificates_to_renew, ensure_pki
from vkgateway.local.provisioner import process as provisioner
from vkgateway.local.record import PlatformRecord
from vkgateway.programs.supervisor.client import SupervisorClient


async def renew_certificates(data_dir: Path, *, supervisor: SupervisorClient, now: datetime.datetime) -> list[str]:
    """Renew the certificates of which less than a third is left at `now` (aware); their names, none where none was.

    Most processes read them again by themselves; KWOK and the hollow kubelet are restarted.

    Raises:
        ConflictError: `up` or `down` is at work.
        VkgatewayError: keys are damaged, the disk is full, the supervisor does not answer.
    """
    paths = PlatformPaths(data_dir)
    due = certificates_to_renew(paths, now=now)
    if not due:
        return []
    with disk_errors(data_dir), work_lock(paths.lock_path, command="renewal"):
        record = records.load_record(paths.record_path)
        if record is None:
            return []
        # Asked first: were it found out of reach later, these two would go on with what ends, and nothing look again.
        running = {state.name: state for state in await supervisor.list_processes(compute.GROUP)}
        _write_certificates(paths, record, now=now)
        port = record.ports["hollow-kubelet"]
        if (state := running.get(kwok.NAME)) is not None:
            await supervisor.ensure_process(hollow.process_spec(paths, port=port, program=Path(state.argv[0])))
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
