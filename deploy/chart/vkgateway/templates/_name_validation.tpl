{{/*
Refuse a name of the gateway's own objects, and another name than the installed one: Helm would delete the StatefulSet of etcd,
and start an empty etcd under the new name.
*/}}
{{- define "vkgateway.checkName" -}}
{{- $name := include "vkgateway.name" . -}}
{{- if regexMatch "^(tenant|usage)(-|$)" $name -}}
{{- fail (printf "nameOverride is %q, but the gateway stores Secrets and ConfigMaps of tenants under names such as tenant-NAME. Set a name that starts with neither tenant nor usage." $name) -}}
{{- end -}}
{{- $installed := fromJson (include "vkgateway.installedName" .) -}}
{{- with $installed.name -}}
{{- if ne . $name -}}
{{- fail (printf "nameOverride cannot change: the release's name for its objects is %q, not %q, and the %s. Set nameOverride to %q.%s" . $name $installed.reason . $installed.way) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The name with which the chart is installed, as JSON: `name`, the `reason` why it cannot change, and another `way` out. Without
an installation, `name` is missing. `helm uninstall` keeps the volumes of etcd, and so the tenants' objects.
*/}}
{{- define "vkgateway.installedName" -}}
{{- $found := dict -}}
{{- range (lookup "apps/v1" "Deployment" .Release.Namespace "").items -}}
{{- if eq "gateway" (include "vkgateway.componentOf" .) -}}
{{- $name := .metadata.name -}}
{{- $found = dict "name" $name "reason" (printf "API servers of tenants call its Service %s-kubelet" $name) -}}
{{- end -}}
{{- end -}}
{{- range (lookup "v1" "PersistentVolumeClaim" .Release.Namespace "").items -}}
{{- if and $.Values.etcd.enabled (eq "etcd" (include "vkgateway.componentOf" .)) -}}
{{- $name := regexReplaceAll "^data-(.*)-etcd-[0-9]+$" .metadata.name "${1}" -}}
{{- $found = dict "name" $name "reason" (printf "tenants' objects are in the volume %s" .metadata.name) "way" (printf " To delete them with all tenants, delete the volumes: kubectl delete pvc --namespace %s --selector app.kubernetes.io/name=vkgateway" $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- range (lookup "apps/v1" "StatefulSet" .Release.Namespace "").items -}}
{{- if eq "etcd" (include "vkgateway.componentOf" .) -}}
{{- $found = dict "name" (trimSuffix "-etcd" .metadata.name) "reason" (printf "tenants' objects are in StatefulSet %s, which Helm would delete" .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- toJson (merge $found (dict "way" "")) -}}
{{- end -}}

{{/* Component of an object of this chart; empty for other objects. */}}
{{- define "vkgateway.componentOf" -}}
{{- $labels := .metadata.labels | default dict -}}
{{- if eq "vkgateway" (get $labels "app.kubernetes.io/name") -}}
{{ get $labels "app.kubernetes.io/component" }}
{{- end -}}
{{- end -}}
