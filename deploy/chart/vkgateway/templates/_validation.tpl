{{/* Refuse what the schema of the values cannot: each problem is one sentence with the way out. */}}
{{- define "vkgateway.validate" -}}
{{- if ne .Release.Namespace "vkgateway-system" -}}
{{- fail (printf "The release's namespace is %q, but the gateway stores its objects in vkgateway-system. Add: --namespace vkgateway-system --create-namespace" .Release.Namespace) -}}
{{- end -}}
{{- $role := lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "vkgateway-management" -}}
{{- $owner := dig "metadata" "annotations" "meta.helm.sh/release-name" "" $role -}}
{{- if and $owner (ne $owner .Release.Name) -}}
{{- fail (printf "Release %q already runs vkgateway in this cluster, and one gateway serves a management cluster. Upgrade it instead: helm upgrade --namespace vkgateway-system %s CHART" $owner $owner) -}}
{{- end -}}
{{- if and (not .Values.etcd.enabled) (not (dig "datastore" "endpoints" "" .Values.config)) -}}
{{- fail "etcd.enabled is false, and config.datastore.endpoints is not set. Set the endpoints of your etcd in the form https://HOST:PORT, or set etcd.enabled to true." -}}
{{- end -}}
{{- if .Values.etcd.enabled -}}
{{- $found := lookup "apps/v1" "StatefulSet" .Release.Namespace "vkgateway-etcd" -}}
{{- if and $found (ne (int $found.spec.replicas) (int .Values.etcd.members)) -}}
{{- fail (printf "etcd.members cannot change from %d to %d: the members of an etcd cluster are added one by one with `etcdctl member add`. Set etcd.members to %d." (int $found.spec.replicas) (int .Values.etcd.members) (int $found.spec.replicas)) -}}
{{- end -}}
{{- if and .Values.etcd.persistence.enabled (not .Values.etcd.persistence.storageClass) (not $found) -}}
{{- include "vkgateway.checkDefaultStorageClass" . -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* `lookup` returns nothing for `helm template`, so only a list with the namespace's API proves that it works. */}}
{{- define "vkgateway.checkDefaultStorageClass" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}
{{- $default := false -}}
{{- range $class := (lookup "storage.k8s.io/v1" "StorageClass" "" "").items -}}
{{- if eq "true" (dig "metadata" "annotations" "storageclass.kubernetes.io/is-default-class" "" $class) -}}
{{- $default = true -}}
{{- end -}}
{{- end -}}
{{- if not $default -}}
{{- fail "The cluster has no default StorageClass for the volumes of etcd. Set etcd.persistence.storageClass, or provide volumes without a class and set etcd.persistence.storageClass to \"-\". For a trial, etcd.persistence.enabled=false stores data in the pods." -}}
{{- end -}}
{{- end -}}
{{- end -}}
