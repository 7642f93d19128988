{{/* DNS names of the members, as a YAML list. */}}
{{- define "vkgateway.etcdHosts" -}}
{{- $name := printf "%s-etcd" (include "vkgateway.name" .) -}}
{{- range $member := until (int .Values.etcd.members) }}
- {{ $name }}-{{ $member }}.{{ $name }}.{{ $.Release.Namespace }}.svc
{{- end }}
{{- end -}}

{{/* DNS names in the certificate of the members, as a YAML list. The first is the one that peers have in common. */}}
{{- define "vkgateway.etcdNames" -}}
- {{ include "vkgateway.name" . }}-etcd.{{ .Release.Namespace }}.svc
- localhost
{{- include "vkgateway.etcdHosts" . }}
{{- end -}}

{{/* Settings `datastore`, with certificates from Secrets that the gateway creates itself, or from files. */}}
{{- define "vkgateway.datastoreSettings" -}}
endpoints:
{{- if .Values.etcd.enabled }}
  {{- range fromYamlArray (include "vkgateway.etcdHosts" .) }}
  - https://{{ . }}:2379
  {{- end }}
enableAuth: true
{{- else }}
  {{- toYaml .Values.datastore.endpoints | nindent 2 }}
{{- end }}
{{- if eq "files" (include "vkgateway.certificateSource" .) }}
ca: /etc/vkgateway-etcd/ca.crt
caKey: /etc/vkgateway-etcd/ca.key
cert: /etc/vkgateway-etcd/tls.crt
key: /etc/vkgateway-etcd/tls.key
{{- else if eq "gateway" (include "vkgateway.certificateSource" .) }}
managed:
  secretPrefix: {{ include "vkgateway.name" . }}-etcd
  namespace: {{ .Release.Namespace }}
  serverNames: {{- include "vkgateway.etcdNames" . | nindent 4 }}
{{- end }}
{{- end -}}

{{/*
Where the gateway gets the certificates of etcd: `gateway` if it issues them, `files` if Secrets are mounted, `settings` if
`config` and additional volumes say it.
*/}}
{{- define "vkgateway.certificateSource" -}}
{{- if .Values.etcd.enabled -}}
{{ .Values.certificates.certManager.enabled | ternary "files" "gateway" }}
{{- else -}}
{{ .Values.datastore.existingSecret | empty | ternary "settings" "files" }}
{{- end -}}
{{- end -}}

{{/* The volume with the files of the certificates. */}}
{{- define "vkgateway.certificateVolume" -}}
projected:
  defaultMode: 0440
  sources:
  {{- if .Values.etcd.enabled }}
    - secret:
        name: {{ include "vkgateway.name" . }}-etcd-authority
        items:
          - {key: tls.crt, path: ca.crt}
          - {key: tls.key, path: ca.key}
    - secret:
        name: {{ include "vkgateway.name" . }}-etcd-client
        items:
          - {key: tls.crt, path: tls.crt}
          - {key: tls.key, path: tls.key}
  {{- else }}
    - secret:
        name: {{ .Values.datastore.existingSecret }}
        items:
        {{- range list "ca.crt" "ca.key" "tls.crt" "tls.key" }}
          - {key: {{ . }}, path: {{ . }}}
        {{- end }}
  {{- end }}
{{- end -}}

{{/* Arguments of a member, as a YAML list. */}}
{{- define "vkgateway.etcdArguments" -}}
{{- $name := printf "%s-etcd" (include "vkgateway.name" .) -}}
{{- $domain := printf "%s.%s.svc" $name .Release.Namespace -}}
{{- $peers := list -}}
{{- range $member := until (int .Values.etcd.members) -}}
{{- $peers = append $peers (printf "%s-%d=https://%s-%d.%s:2380" $name $member $name $member $domain) -}}
{{- end -}}
- --name=$(POD_NAME)
# A directory that etcd creates with the mode that it wants.
- --data-dir=/var/lib/etcd/data
- --listen-client-urls=https://0.0.0.0:2379
- --advertise-client-urls=https://$(POD_NAME).{{ $domain }}:2379
- --listen-peer-urls=https://0.0.0.0:2380
- --initial-advertise-peer-urls=https://$(POD_NAME).{{ $domain }}:2380
- --initial-cluster={{ join "," $peers }}
- --initial-cluster-token={{ $name }}
- --initial-cluster-state=new
- --cert-file=/etc/etcd/pki/tls.crt
- --key-file=/etc/etcd/pki/tls.key
- --trusted-ca-file=/etc/etcd/pki/ca.crt
- --client-cert-auth=true
- --peer-cert-file=/etc/etcd/pki/tls.crt
- --peer-key-file=/etc/etcd/pki/tls.key
- --peer-trusted-ca-file=/etc/etcd/pki/ca.crt
- --peer-client-cert-auth=true
# The same authority signs the certificates of tenants' API servers. They have no host name, so they are no peers.
- --peer-cert-allowed-hostname={{ $domain }}
# The address of a peer has no name while its pod starts.
- --peer-skip-client-san-verification=true
# For probes and Prometheus, which have no client certificate.
- --listen-metrics-urls=http://0.0.0.0:2381
# Tenants' API servers may not compact, so etcd does. It keeps two to four minutes of history.
- --auto-compaction-mode=periodic
- --auto-compaction-retention=2m
- --quota-backend-bytes={{ int64 .Values.etcd.quotaBytes }}
- --enable-grpc-gateway=false
- --log-level=warn
{{- end -}}
