"""Public operators, schedulers and Helm: their releases, their builds, and the manifests stored with them."""

from __future__ import annotations

from typing import Final

from operators.published import PublishedPrograms
from vkgateway_platform.binaries.catalogue import BuildUnit

VOLCANO: Final = PublishedPrograms(
    BuildUnit(
        name="volcano",
        project="volcano",
        packages={
            "vc-scheduler": "volcano.sh/volcano/cmd/scheduler",
            "vc-controller-manager": "volcano.sh/volcano/cmd/controller-manager",
        },
        modules=("volcano.sh/volcano",),
        variables=("volcano.sh/volcano/pkg/version.Version=v{version}",),
        replacements={"volcano.sh/apis": "1.14.0"},
        seconds=210,
    ),
    "1.14.1",
    {
        "config/crd/volcano/bases": "crds",
        # Its controllers start only if these kinds are served, too.
        "config/crd/jobflow/bases": "crds-jobflow",
        "installer/helm/chart/volcano/config/volcano-scheduler.conf": "scheduler.conf",
        "installer/helm/chart/volcano": "chart",
    },
)


KUEUE: Final = PublishedPrograms(
    BuildUnit(
        name="kueue",
        project="kueue",
        packages={"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
        modules=("sigs.k8s.io/kueue",),
        variables=("sigs.k8s.io/kueue/pkg/version.GitVersion=v{version}",),
        replacements={},
        seconds=240,
    ),
    "0.17.0",
    {"config/components/crd/bases": "crds", "charts/kueue": "chart"},
)

KOORDINATOR: Final = PublishedPrograms(
    BuildUnit(
        name="koordinator",
        project="koordinator",
        packages={"koord-scheduler": "github.com/koordinator-sh/koordinator/cmd/koord-scheduler"},
        modules=("github.com/koordinator-sh/koordinator",),
        replacements={},
        seconds=400,
    ),
    "1.6.0",
    {"config/crd/bases": "crds"},
)


def mpi_operator(version: str) -> PublishedPrograms:
    """Return the programs of Kubeflow's MPI operator."""
    unit = BuildUnit(
        name="mpi-operator",
        project="mpi-operator",
        packages={"mpi-operator": "github.com/kubeflow/mpi-operator/cmd/mpi-operator"},
        modules=("github.com/kubeflow/mpi-operator",),
        variables=("github.com/kubeflow/mpi-operator/pkg/version.Version=v{version}",),
        replacements={},
        seconds=120,
    )
    return PublishedPrograms(unit, version, {"deploy/v2beta1/mpi-operator.yaml": "mpi-operator.yaml"})


TRAINING_OPERATOR: Final = PublishedPrograms(
    BuildUnit(
        name="training-operator",
        project="training-operator",
        packages={"training-operator.v1": "github.com/kubeflow/training-operator/cmd/training-operator.v1"},
        modules=("github.com/kubeflow/training-operator",),
        replacements={},
        seconds=150,
    ),
    "1.8.1",
    {"manifests": "manifests"},
)

JOBSET: Final = PublishedPrograms(
    BuildUnit(
        name="jobset",
        project="jobset",
        packages={"jobset": "sigs.k8s.io/jobset"},
        modules=("sigs.k8s.io/jobset",),
        replacements={},
        seconds=150,
    ),
    "0.8.0",
    {"config/components/crd/bases": "crds", "config/components/webhook/manifests.yaml": "webhooks.yaml"},
)

KUBERAY: Final = PublishedPrograms(
    BuildUnit(
        name="kuberay",
        project="kuberay",
        packages={"ray-operator": "github.com/ray-project/kuberay/ray-operator"},
        modules=("github.com/ray-project/kuberay/ray-operator",),
        replacements={},
        seconds=180,
    ),
    "1.4.2",
    {"config/crd/bases": "crds"},
)

METRICS_SERVER: Final = PublishedPrograms(
    BuildUnit(
        name="metrics-server",
        project="metrics-server",
        packages={"metrics-server": "sigs.k8s.io/metrics-server/cmd/metrics-server"},
        modules=("sigs.k8s.io/metrics-server",),
        variables=("k8s.io/client-go/pkg/version.gitVersion=v{version}",),
        replacements={},
        seconds=150,
    ),
    "0.7.2",
    {"manifests/base": "manifests"},
)

PROMETHEUS_OPERATOR: Final = PublishedPrograms(
    BuildUnit(
        name="prometheus-operator",
        project="prometheus-operator",
        packages={"prometheus-operator": "github.com/prometheus-operator/prometheus-operator/cmd/operator"},
        modules=("github.com/prometheus-operator/prometheus-operator",),
        variables=("github.com/prometheus/common/version.Version={version}",),
        replacements={},
        seconds=240,
    ),
    "0.85.0",
    {"example/prometheus-operator-crd": "crds"},
)

VIRTUAL_KUBELET_SUITE: Final = PublishedPrograms(
    BuildUnit(
        name="virtual-kubelet-patient-suite",
        project="virtual-kubelet",
        packages={"virtual-kubelet-e2e.test": "./virtual-kubelet-e2e", "node-front": "./node-front"},
        modules=("github.com/virtual-kubelet/virtual-kubelet",),
        tests=frozenset({"virtual-kubelet-e2e.test"}),
        replacements={},
        seconds=120,
    ),
    "1.14.1",
    {},
    # A kubelet looks at its containers once a second, so the end of a pod takes up to a second longer than the pod's.
    {"test/e2e/basic.go": ("deleteGracePeriodForProvider = 1 *", "deleteGracePeriodForProvider = 10 *")},
)
"""virtual-kubelet's end-to-end suite, and the pod that represents a node's kubelet in it."""

HELM: Final = PublishedPrograms(
    BuildUnit(
        name="helm",
        project="helm",
        packages={"helm": "helm.sh/helm/v3/cmd/helm"},
        modules=("helm.sh/helm/v3",),
        variables=(
            "helm.sh/helm/v3/internal/version.version=v{version}",
            # The release that `helm template` assumes without --kube-version.
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
        ),
        replacements={},
        seconds=180,
    ),
    "3.22.0",
    {},
)
