"""Kits of the pages of docs/operators, and of schedulers for compute clusters: images and manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from operators.programs import KUEUE, METRICS_SERVER, TRAINING_OPERATOR, VOLCANO, mpi_operator
from operators.published import PublishedPrograms
from operators.recipes import LIBRARIES, Compiled, File, Kit, Recipe, Root

HOROVOD_VERSION: Final = "0.28.1"
KOPF_VERSION: Final = "1.45.2"
SPARK_VERSION: Final = "4.0.5"
_PY4J_VERSION: Final = "0.10.9.9"
_CLIENT_VERSION: Final = "35.0.0"
_USER: Final = (
    'echo \'app:x:1000:1000::/home/app:/bin/bash\' >>"$1/etc/passwd" && install -d -o 1000 -g 1000 "$1/home/app"'
)
"""Command that adds a user other than root, for tenants whose pods must not run as root."""


# sshd without root: a port above 1024, and the job's key, which the operator mounts, for host and user.
_SSHD: Final = """\
Port 2222
PidFile none
HostKey /home/app/.ssh/id_rsa
StrictModes no
UsePAM no
"""
_SSH: Final = """\
Host *
  Port 2222
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""
_OVER_SSH: Final = {"etc/ssh/sshd_job_config": File(_SSHD), "etc/ssh/ssh_config.d/job.conf": File(_SSH)}

OPENMPI: Final = Recipe(
    name="vkgateway.local/openmpi:1",
    root=Root(("openmpi-bin", "openssh-server", "openssh-client", "python3-mpi4py"), (_USER,)),
    files=_OVER_SSH,
    user="1000",
)
# Workers of a PyTorchJob wait until this resolves the master's name.
_NSLOOKUP: Final = '#!/bin/sh\nexec getent hosts "$1"\n'
PYTHON: Final = Recipe(
    name="vkgateway.local/python:1",
    root=Root(("python3",), (_USER,)),
    files={"usr/local/bin/nslookup": File(_NSLOOKUP, 0o755)},
    user="1000",
)
# torchrun looks for zero among the members of a flag, which Python 3.11 no longer lists.
_FLAGS: Final = (
    "sed -i 's/for s in Std:/for s in (Std.NONE, *Std):/' "
    '"$1/usr/lib/python3/dist-packages/torch/distributed/elastic/multiprocessing/api.py"'
)
TORCH: Final = Recipe(
    name="vkgateway.local/torch:1.13",
    root=Root(("python3-torch",), (_USER, _FLAGS, 'rm -r "$1/usr/lib/libtorch-test"')),
    user="1000",
)
# Compiled against that PyTorch, with its gloo controller. ssh starts the ranks, as with Open MPI.
HOROVOD: Final = Recipe(
    name=f"vkgateway.local/horovod:{HOROVOD_VERSION}",
    root=Root(
        (
            *("python3-torch", "openssh-server", "openssh-client"),
            *(f"python3-{name}" for name in ("cffi", "cloudpickle", "distutils", "packaging", "psutil", "yaml")),
        ),
        (_USER, 'rm -r "$1/usr/lib/libtorch-test"'),
    ),
    compiled=Compiled(
        packages=(f"horovod=={HOROVOD_VERSION}",),
        tools=(
            *("cmake", "g++", "libtorch-dev", "make", "pybind11-dev", "python3-dev"),
            *("python3-pip", "python3-setuptools", "python3-wheel"),
        ),
        environment={
            "HOROVOD_WITH_PYTORCH": "1",
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITHOUT_MPI": "1",
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITHOUT_TENSORFLOW": "1",
            "MAKEFLAGS": "-j2",
        },
    ),
    files=_OVER_SSH
    | {
        # Processes started by ssh do not get the image's environment.
        "usr/lib/python3/dist-packages/libraries.pth": File(f"{LIBRARIES}\n"),
        "usr/local/bin/horovodrun": File(f'#!/bin/sh\nexec python3 {LIBRARIES}/bin/horovodrun "$@"\n', 0o755),
    },
    user="1000",
)
KOPF: Final = Recipe(
    name=f"vkgateway.local/kopf:{KOPF_VERSION}",
    root=PYTHON.root,
    libraries=(f"kopf=={KOPF_VERSION}", f"kubernetes=={_CLIENT_VERSION}"),
    environment={"PYTHONPATH": LIBRARIES},
    entrypoint=("python3", "-m", "kopf"),
    user="1000",
)


# Entry point that Spark expects: `driver ...` or `executor` in its pods, else the given command.
_SPARK_ENTRYPOINT: Final = """\
#!/bin/bash
case "$1" in
driver)
  shift
  set -- --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
  exec "$SPARK_HOME/bin/spark-submit" "$@"
  ;;
executor)
  mapfile -t options < <(env | sed -n 's/^SPARK_JAVA_OPT_[0-9]*=//p')
  exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$SPARK_HOME/jars/*" \\
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \\
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \\
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" --podName "$SPARK_EXECUTOR_POD_NAME" \\
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID"
  ;;
*) exec "$@" ;;
esac
"""
SPARK: Final = Recipe(
    name=f"vkgateway.local/spark:{SPARK_VERSION}",
    root=Root(("openjdk-17-jre-headless", "python3"), (_USER,)),
    libraries=(f"py4j=={_PY4J_VERSION}",),
    sources=(f"pyspark=={SPARK_VERSION}",),
    files={"opt/entrypoint": File(_SPARK_ENTRYPOINT, 0o755)},
    environment={"PYTHONPATH": LIBRARIES, "SPARK_HOME": f"{LIBRARIES}/pyspark"},
    entrypoint=("/opt/entrypoint",),
    user="1000",
)


def _operator_image(published: PublishedPrograms, program: str, path: str, *, name: str = "") -> Recipe:
    """Return an image of one program, like the operator's own image."""
    return Recipe(
        name=f"vkgateway.local/{name or published.unit.name}:{published.version}",
        programs={path: (published, program)},
        entrypoint=(f"/{path}",),
        user="1000",
    )


def _mpi_kit(version: str, *images: Recipe) -> Kit:
    published = mpi_operator(version)
    return Kit(
        images=(_operator_image(published, "mpi-operator", "opt/mpi-operator"), *images),
        manifests={"mpi-operator.yaml": (published, "mpi-operator.yaml")},
    )


KITS: Final[Mapping[str, Kit]] = {
    "mpi": _mpi_kit("0.7.0", OPENMPI),
    "mpi-old": _mpi_kit("0.6.0"),
    "kopf": Kit(images=(KOPF,)),
    "training": Kit(
        images=(_operator_image(TRAINING_OPERATOR, "training-operator.v1", "manager"), PYTHON),
        manifests={"manifests": (TRAINING_OPERATOR, "manifests")},
    ),
    "elastic": Kit(
        images=(_operator_image(TRAINING_OPERATOR, "training-operator.v1", "manager"), TORCH),
        manifests={"manifests": (TRAINING_OPERATOR, "manifests")},
    ),
    "horovod": _mpi_kit("0.7.0", HOROVOD),
    "volcano": Kit(
        images=(
            _operator_image(VOLCANO, "vc-controller-manager", "vc-controller-manager", name="vc-controller-manager"),
            _operator_image(VOLCANO, "vc-scheduler", "vc-scheduler", name="vc-scheduler"),
            PYTHON,
        ),
        manifests={name: (VOLCANO, name) for name in ("chart", "crds", "crds-jobflow")},
        usage="For a compute cluster, see docs/how-to/let-volcano-schedule-a-pool.md. For a tenant, its operator page.",
    ),
    "kueue": Kit(
        images=(_operator_image(KUEUE, "kueue", "manager"),),
        manifests={"chart": (KUEUE, "chart")},
        usage="Load the image and install the chart, as in docs/how-to/let-kueue-schedule-a-pool.md.",
    ),
    "spark": Kit(images=(SPARK,)),
    "metrics-server": Kit(
        images=(_operator_image(METRICS_SERVER, "metrics-server", "metrics-server"),),
        manifests={"manifests": (METRICS_SERVER, "manifests")},
    ),
}
"""Kits by name, as in `make operator-NAME`."""
