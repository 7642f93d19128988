{{/* Key of a file of a tenant template in the ConfigMap; call with (dict "template" NAME "file" FILE). */}}
{{- define "vkgateway.templateKey" -}}
{{ .template }}..{{ .file | replace "/" ".." }}
{{- end -}}
