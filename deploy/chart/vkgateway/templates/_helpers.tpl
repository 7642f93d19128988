{{/*
Start of the names of objects in the release's namespace. Labels, ServiceAccounts and roles that the gateway's code, the kubectl
plugin and users of other namespaces name stay the same.
*/}}
{{- define "vkgateway.name" -}}
{{ .Values.nameOverride | default "vkgateway" }}
{{- end -}}

{{/* Labels of every object; call with (dict "root" $ "component" NAME). */}}
{{- define "vkgateway.labels" -}}
{{ include "vkgateway.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: vkgateway
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels that select the pods of a component. */}}
{{- define "vkgateway.selector" -}}
app.kubernetes.io/name: vkgateway
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Name of an image; call with (dict "image" IMAGE "repository" DEFAULT "tag" DEFAULT). */}}
{{- define "vkgateway.image" -}}
{{- $repository := .image.repository | default .repository -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ .image.tag | default .tag }}
{{- end -}}
{{- end -}}

{{- define "vkgateway.gatewayImage" -}}
{{ include "vkgateway.image" (dict "image" .Values.image "repository" "" "tag" .Chart.AppVersion) }}
{{- end -}}

{{/*
Labels and annotations of pods; call with (dict "root" $ "component" NAME "values" VALUES "checksums" MAP). No label has a
version: an upgrade of the chart restarts only pods that change.
*/}}
{{- define "vkgateway.podMetadata" -}}
labels:
  {{- merge (include "vkgateway.selector" . | fromYaml) (dict "app.kubernetes.io/part-of" "vkgateway") .values.podLabels | toYaml | nindent 2 }}
{{- with merge (dict) .checksums .values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Security contexts of the Pod Security level `restricted`. */}}
{{- define "vkgateway.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "vkgateway.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Settings of the gateway: those that follow from the chart, overridden by `config`. */}}
{{- define "vkgateway.config" -}}
{{- $computed := dict
  "address" "0.0.0.0"
  "dataDir" "/var/lib/vkgateway"
  "managementCluster" (dict "kubeconfig" "" "installDefinitions" false)
  "kubelet" (dict "port" 10250 "advertiseAddress" (printf "%s-kubelet.%s.svc" (include "vkgateway.name" .) .Release.Namespace) "advertisePort" 10250)
  "controlPlanes" (dict "driver" "kubernetes" "parameters" (dict "registry" .Values.registry))
  "observability" (dict "address" "0.0.0.0" "port" 9631 "secureAddress" "0.0.0.0" "securePort" 9632)
  "page" (dict "enabled" true "address" "0.0.0.0" "port" 9633)
-}}
{{- $_ := set $computed "datastore" (fromYaml (include "vkgateway.datastoreSettings" .)) -}}
{{- if .Values.templates -}}
{{- $_ := set $computed.controlPlanes "templatesDir" "/etc/vkgateway-templates" -}}
{{- end -}}
{{- with .Values.imagePullSecrets -}}
{{- $names := list -}}
{{- range . -}}{{- $names = append $names .name -}}{{- end -}}
{{- $_ := set $computed.controlPlanes.parameters "imagePullSecrets" $names -}}
{{- end -}}
{{- toYaml (mergeOverwrite $computed (deepCopy .Values.config)) -}}
{{- end -}}

{{/*
Where pods run; call with (dict "root" $ "component" NAME "values" VALUES "nodes" POLICY). POLICY says what happens if
the pods cannot be spread over nodes: DoNotSchedule or ScheduleAnyway.
*/}}
{{- define "vkgateway.scheduling" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if .values.topologySpreadConstraints }}
{{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else }}
{{- $selector := include "vkgateway.selector" . }}
{{- range $key, $policy := dict "kubernetes.io/hostname" .nodes "topology.kubernetes.io/zone" "ScheduleAnyway" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ $policy }}
    {{- if ne $.component "etcd" }}
    # The pods of a new revision are spread without regard to the old ones.
    matchLabelKeys: [pod-template-hash]
    {{- end }}
    labelSelector:
      matchLabels: {{- $selector | nindent 8 }}
{{- end }}
{{- end }}
{{- end -}}
