"""Values that Helm refuses: the message names the value and the way out."""

from __future__ import annotations

import pytest

from tests.chart.conftest import Helm, RefusedValuesError


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("nonsense=1", "'nonsense' not allowed"),
        ("etcd.member=3", "'member' not allowed"),
        ("etcd.persistence.sise=1Gi", "'sise' not allowed"),
        ("config.kubelet.prot=1", "'prot' not allowed"),
        ("config.datastore.managed.prefix=a", "'prefix' not allowed"),
        ("resources.limit.cpu=1", "'limit' not allowed"),
        ("imagePullSecrets[0].nam=a", "'nam' not allowed"),
        ("etcd.members=2", "/etcd/members"),
        ("replicas=0", "/replicas"),
        ("image.digest=latest", "/image/digest"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("config.logging.level=loud", "/config/logging/level"),
        ("config.kubelet.port=ten", "/config/kubelet/port"),
        ("etcd.persistence.size=large", "/etcd/persistence/size"),
        ("datastore.endpoints={http://etcd:2379}", "/datastore/endpoints/0"),
        ("templates.small.objects/a=b", "missing property 'template.yaml'"),
        ("templates.small.readme=b", "'readme'"),
        ("etcd.enabled=false", "datastore.endpoints is empty. Set"),
        ("etcd.enabled=false,datastore.endpoints={https://a:2379}", "datastore.existingSecret is not set. Set"),
        ("datastore.existingSecret=etcd", "Set etcd.enabled to false"),
        ("certificates.certManager.enabled=true", "Install cert-manager"),
        ("metrics.serviceMonitor.enabled=true", "Install the Prometheus operator"),
    ],
)
def test_the_message_names_the_value(helm: Helm, values: str, words: str) -> None:
    with pytest.raises(RefusedValuesError) as refused:
        helm.template(f"--set={values}")
    assert words in str(refused.value)


def test_the_namespace_is_fixed(helm: Helm) -> None:
    with pytest.raises(RefusedValuesError, match="Add: --namespace vkgateway-system --create-namespace"):
        helm.template(namespace="default")


def test_old_clusters_are_refused(helm: Helm) -> None:
    with pytest.raises(RefusedValuesError, match=r">=1\.30"):
        helm.template("--kube-version=1.29.0")
