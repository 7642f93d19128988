{{/*
The roles of a file in files/rbac, bound to the gateway's service account only; call with (dict "root" $ "file" NAME).
The plain manifests bind them to a user as well, create the namespace, and let the gateway update the definitions.
*/}}
{{- define "vkgateway.roles" -}}
{{- $labels := include "vkgateway.labels" (dict "root" .root "component" "gateway") | fromYaml -}}
{{- $account := dict "kind" "ServiceAccount" "name" "vkgateway" "namespace" .root.Release.Namespace -}}
{{- range $text := splitList "\n---\n" (.root.Files.Get (printf "files/rbac/%s" .file)) }}
{{- $document := fromYaml $text }}
{{- if not (or (eq $document.kind "Namespace") (eq $document.metadata.name "vkgateway-definitions")) }}
{{- $_ := set $document.metadata "labels" $labels }}
{{- if hasSuffix "Binding" $document.kind }}
{{- $_ := set $document "subjects" (list $account) }}
{{- end }}
---
{{ toYaml $document }}
{{- end }}
{{- end }}
{{- end -}}
