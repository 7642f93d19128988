{{/*
The roles of a file in files/rbac, bound to the gateway's service account only; call with (dict "root" $ "file" NAME).
The plain manifests bind them to a user as well, and create the namespace.
*/}}
{{- define "vkgateway.roles" -}}
{{- $labels := include "vkgateway.labels" (dict "root" .root "component" "gateway") | fromYaml -}}
{{- $account := dict "kind" "ServiceAccount" "name" "vkgateway" "namespace" .root.Release.Namespace -}}
{{- range $text := splitList "\n---\n" (.root.Files.Get (printf "files/rbac/%s" .file)) }}
{{- $document := fromYaml $text }}
{{- if ne $document.kind "Namespace" }}
{{- $_ := set $document.metadata "labels" $labels }}
{{- if hasSuffix "Binding" $document.kind }}
{{- $_ := set $document "subjects" (list $account) }}
{{- end }}
---
{{ toYaml $document }}
{{- end }}
{{- end }}
{{- end -}}
