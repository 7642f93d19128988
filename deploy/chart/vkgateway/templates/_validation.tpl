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
{{- include "vkgateway.checkName" . -}}
{{- if not .Values.etcd.enabled -}}
{{- if not (concat .Values.datastore.endpoints (dig "datastore" "endpoints" list .Values.config)) -}}
{{- fail "etcd.enabled is false, and datastore.endpoints is empty. Set the endpoints of your etcd in the form https://HOST:PORT, or set etcd.enabled to true." -}}
{{- end -}}
{{- if not (or .Values.datastore.existingSecret (dig "datastore" "caKey" "" .Values.config)) -}}
{{- fail "etcd.enabled is false, and datastore.existingSecret is not set. Set it to a Secret in the release's namespace with ca.crt, ca.key, tls.crt and tls.key for your etcd." -}}
{{- end -}}
{{- if .Values.certificates.certManager.enabled -}}
{{- fail "certificates.certManager.enabled is for the chart's etcd, but etcd.enabled is false. Issue the certificates of your etcd yourself, and set datastore.existingSecret." -}}
{{- end -}}
{{- else -}}
{{- if or .Values.datastore.endpoints .Values.datastore.existingSecret -}}
{{- fail "datastore.endpoints and datastore.existingSecret are for your etcd, but etcd.enabled is true. Set etcd.enabled to false." -}}
{{- end -}}
{{- end -}}
{{- if .Values.etcd.enabled -}}
{{- include "vkgateway.checkCertificateSource" . -}}
{{- end -}}
{{- if and .Values.certificates.certManager.enabled (not (.Capabilities.APIVersions.Has "cert-manager.io/v1")) -}}
{{- fail "certificates.certManager.enabled is true, but the cluster does not serve cert-manager.io/v1. Install cert-manager, or let the gateway issue the certificates." -}}
{{- end -}}
{{- if and (or .Values.metrics.serviceMonitor.enabled .Values.metrics.prometheusRule.enabled) (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}
{{- fail "metrics.serviceMonitor or metrics.prometheusRule is enabled, but the cluster does not serve monitoring.coreos.com/v1. Install the Prometheus operator, or disable both." -}}
{{- end -}}
{{- if .Values.crds.install -}}
{{- include "vkgateway.checkDefinitions" . -}}
{{- end -}}
{{- if .Values.etcd.enabled -}}
{{- include "vkgateway.checkEtcd" . -}}
{{- end -}}
{{- include "vkgateway.checkSecrets" . -}}
{{- if and (not .Values.etcd.enabled) (lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-etcd" (include "vkgateway.name" .))) -}}
{{- fail (printf "etcd.enabled cannot change to false: the tenants' objects are in the chart's etcd. Set it to true. After you have copied them to your etcd: kubectl delete statefulset %s-etcd --namespace vkgateway-system" (include "vkgateway.name" .)) -}}
{{- end -}}
{{- end -}}

{{/* Refuse to replace definitions by older ones: objects with new fields would lose them. */}}
{{- define "vkgateway.checkDefinitions" -}}
{{- $annotation := "vkgateway.io/definition-version" -}}
{{- range $path, $_ := .Files.Glob "files/crds/*.yaml" -}}
{{- $own := $.Files.Get $path | fromYaml -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $own.metadata.name -}}
{{- $version := dig "metadata" "annotations" $annotation "0" $own | int -}}
{{- $installed := dig "metadata" "annotations" $annotation "0" $found | int -}}
{{- if gt $installed $version -}}
{{- fail (printf "The chart is older than the definition %s in the cluster: its version is %d, and the chart has version %d. Use the chart of the newer release, or set crds.install to false." $own.metadata.name $installed $version) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuse changes of the chart's etcd that a StatefulSet cannot make, and volumes that no class provides. */}}
{{- define "vkgateway.checkEtcd" -}}
{{- $etcd := .Values.etcd -}}
{{- $name := printf "%s-etcd" (include "vkgateway.name" .) -}}
{{- $found := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if $found -}}
{{- if ne (int $found.spec.replicas) (int $etcd.members) -}}
{{- fail (printf "etcd.members cannot change from %d to %d: the members of an etcd cluster are added one by one with `etcdctl member add`. Set etcd.members to %d." (int $found.spec.replicas) (int $etcd.members) (int $found.spec.replicas)) -}}
{{- end -}}
{{- $claims := $found.spec.volumeClaimTemplates | default list -}}
{{- if ne $etcd.persistence.enabled (gt (len $claims) 0) -}}
{{- fail (printf "etcd.persistence.enabled cannot change to %t: etcd would start without the tenants' objects. Set it to %t." $etcd.persistence.enabled (not $etcd.persistence.enabled)) -}}
{{- end -}}
{{- range $claims -}}
{{- $size := .spec.resources.requests.storage -}}
{{- if ne $size $etcd.persistence.size -}}
{{- fail (printf "etcd.persistence.size cannot change from %s to %s. Set it to %s. To grow a volume, change the claim: kubectl patch pvc data-%s-0 --namespace vkgateway-system --patch '{\"spec\": {\"resources\": {\"requests\": {\"storage\": %q}}}}'" $size $etcd.persistence.size $size $name $etcd.persistence.size) -}}
{{- end -}}
{{- $class := .spec.storageClassName | default "" -}}
{{- $wanted := eq $etcd.persistence.storageClass "-" | ternary "" $etcd.persistence.storageClass -}}
{{- if and $wanted (ne $class $wanted) -}}
{{- fail (printf "etcd.persistence.storageClass cannot change from %q to %q. Set it to %q." $class $wanted $class) -}}
{{- end -}}
{{- end -}}
{{- else if and $etcd.persistence.enabled (not $etcd.persistence.storageClass) -}}
{{- include "vkgateway.checkDefaultStorageClass" . -}}
{{- end -}}
{{- end -}}

{{/*
Refuse another source of the certificates of the chart's etcd: cert-manager would replace the authority of the gateway, and the
gateway would wait for keys that the Secret of cert-manager lacks.
*/}}
{{- define "vkgateway.checkCertificateSource" -}}
{{- $wanted := .Values.certificates.certManager.enabled -}}
{{- $name := printf "%s-etcd" (include "vkgateway.name" .) -}}
{{- $found := (lookup "v1" "Secret" .Release.Namespace (printf "%s-authority" $name)).data | default dict -}}
{{- if and $found (eq $wanted (hasKey $found "ca.key")) -}}
{{- fail (printf "certificates.certManager.enabled cannot change to %t: the API servers of tenants trust only the authority in Secret %s-authority. Set it to %t. Without tenants, delete the Secrets %s-authority, %s-server and %s-client." $wanted $name (not $wanted) $name $name $name) -}}
{{- end -}}
{{- end -}}

{{/* Refuse Secrets that do not exist or lack keys: pods would wait for them. `helm template` cannot look them up. */}}
{{- define "vkgateway.checkSecrets" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}
{{- range .Values.imagePullSecrets -}}
{{- if not (lookup "v1" "Secret" $.Release.Namespace .name) -}}
{{- fail (printf "Secret %s of imagePullSecrets does not exist. Create it: kubectl create secret docker-registry %s --namespace %s --docker-server=HOST --docker-username=USER --docker-password=PASSWORD" .name .name $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- with .Values.datastore.existingSecret -}}
{{- $create := printf "kubectl create secret generic %s --namespace %s --from-file=ca.crt --from-file=ca.key --from-file=tls.crt --from-file=tls.key" . $.Release.Namespace -}}
{{- $found := lookup "v1" "Secret" $.Release.Namespace . -}}
{{- if not $found -}}
{{- fail (printf "Secret %s of datastore.existingSecret does not exist. Create it: %s" . $create) -}}
{{- end -}}
{{- range list "ca.crt" "ca.key" "tls.crt" "tls.key" -}}
{{- if not (index ($found.data | default dict) .) -}}
{{- fail (printf "Secret %s of datastore.existingSecret has no key %s. Delete it, and create it again: %s" $found.metadata.name . $create) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuse volumes that no class provides. `lookup` finds nothing in `helm template`, not even a namespace. */}}
{{- define "vkgateway.checkDefaultStorageClass" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" -}}
{{- $default := false -}}
{{- range $class := (lookup "storage.k8s.io/v1" "StorageClass" "" "").items -}}
{{- $annotations := dig "metadata" "annotations" dict $class -}}
{{- if or (eq "true" (get $annotations "storageclass.kubernetes.io/is-default-class")) (eq "true" (get $annotations "storageclass.beta.kubernetes.io/is-default-class")) -}}
{{- $default = true -}}
{{- end -}}
{{- end -}}
{{- if not $default -}}
{{- fail "The cluster has no default StorageClass for the volumes of etcd. Set etcd.persistence.storageClass, or provide volumes without a class and set etcd.persistence.storageClass to \"-\". For a trial, etcd.persistence.enabled=false stores data in the pods." -}}
{{- end -}}
{{- end -}}
{{- end -}}
