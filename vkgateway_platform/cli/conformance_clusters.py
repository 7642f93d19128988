"""Inputs of `vkgateway conformance`: tested clusters, their results, the suite and its images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vkgateway.cli.progress import Progress
    from vkgateway_platform.binaries.resolver import Resolver
    from vkgateway_platform.conformance.outcomes import Record
    from vkgateway_platform.conformance.runner import ClusterUnderTest
    from vkgateway_platform.conformance.suite import Suite

BASELINE_NAME = "straight"
"""Name of the baseline: the compute cluster itself."""


def results_folder(data_dir: Path, tenant: str) -> Path:
    """Return the directory of a tenant's results; an empty name selects the baseline."""
    from vkgateway_platform.embedded.paths import PlatformPaths

    base = PlatformPaths(data_dir).conformance_dir
    return base / "tenants" / tenant if tenant else base / BASELINE_NAME


def load_results(data_dir: Path, tenant: str) -> Record | None:
    """Return a tenant's results; an empty name selects the baseline."""
    from vkgateway_platform.conformance import outcomes, runner

    return outcomes.load_record(runner.record_file(results_folder(data_dir, tenant)))


async def load_cluster(tenant: str | None, *, data_dir: Path, kubeconfig: Path | None) -> ClusterUnderTest:
    """Return the tested cluster with an admin kubeconfig."""
    from vkgateway.cli import cluster
    from vkgateway.cli.cluster import fetch_kubeconfig
    from vkgateway.kube import kubeconfig as files
    from vkgateway_platform.conformance.cluster import server_version
    from vkgateway_platform.conformance.runner import ClusterUnderTest

    folder = results_folder(data_dir, tenant or "")
    config = kubeconfig or data_dir / "compute.kubeconfig"
    async with cluster.management_cluster(data_dir, kubeconfig) as client:
        if tenant is not None:
            config = folder / "admin.kubeconfig"
            files.write_file(config, await fetch_kubeconfig(client, tenant))
    version = await server_version(config)
    return ClusterUnderTest(name=tenant or BASELINE_NAME, kubeconfig=config, kubernetes_version=version, folder=folder)


async def load_suite(
    version: str, *, file: Path | None, progress: Progress | None, arguments: tuple[str, ...] = ()
) -> Suite:
    """Return the suite of a Kubernetes version from the given program, the cache or a build."""
    from vkgateway_platform.conformance.suite import Suite

    resolver = _build_resolver(version, progress=progress)
    programs = ("kubectl",) if file else ("kubectl", "e2e.test")
    found = await resolver.resolve(*programs)
    return Suite(program=file or found["e2e.test"], kubectl=found["kubectl"], arguments=arguments)


def _build_resolver(version: str, *, progress: Progress | None) -> Resolver:
    from vkgateway_platform.binaries.resolver import Resolver

    if progress is None:
        return Resolver(kubernetes_version=version, report=_discard_report)
    live = progress if sys.stderr.isatty() else None
    return Resolver(kubernetes_version=version, report=progress.done, progress=live)


async def provide_images(suite: Suite, *, data_dir: Path, version: str, progress: Progress) -> None:
    """Build and load the suite's images that the platform's real node lacks; do nothing without a real node."""
    import asyncio

    from vkgateway_platform.binaries.cache import Cache
    from vkgateway_platform.conformance import images
    from vkgateway_platform.embedded import images as node_images
    from vkgateway_platform.embedded.paths import PlatformPaths
    from vkgateway_platform.embedded.record import load_record

    record = load_record(PlatformPaths(data_dir).record_path)
    if record is None or record.real_node_why_not:
        return
    present = set(await node_images.list_images(data_dir, report=progress))
    missing = [image for image in images.buildable_images(await suite.list_images()) if image not in present]
    if not missing:
        return
    programs = await _build_resolver(version, progress=progress).resolve(*images.PROGRAMS)
    progress(f"building {len(missing)} images")
    archive = PlatformPaths(data_dir).conformance_dir / "images.tar"
    cache = Cache(Cache.default_root())
    async with cache.locks.hold("image-conformance", report=progress.done):
        root = images.root_archive(cache.root)
        await asyncio.to_thread(images.build_images, archive, missing, programs=programs, root=root)
    progress("loading the images on the real node")
    await node_images.load_images(data_dir, archive, report=progress)
    archive.unlink()
    progress.done(f"{len(missing)} images loaded on the real node")


def _discard_report(_: str) -> None:
    """Discard the resolver's messages: a report shows only the results."""
