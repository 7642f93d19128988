{{/* DNS names of the members, as a YAML list. */}}
{{- define "vkgateway.etcdHosts" -}}
{{- range $member := until (int .Values.etcd.members) }}
- vkgateway-etcd-{{ $member }}.vkgateway-etcd.{{ $.Release.Namespace }}.svc
{{- end }}
{{- end -}}

{{/* Settings `datastore` for the chart's etcd: the gateway creates its certificates in Secrets. */}}
{{- define "vkgateway.etcdSettings" -}}
{{- $service := printf "vkgateway-etcd.%s.svc" .Release.Namespace -}}
endpoints:
  {{- range fromYamlArray (include "vkgateway.etcdHosts" .) }}
  - https://{{ . }}:2379
  {{- end }}
enableAuth: true
managed:
  secretPrefix: vkgateway-etcd
  namespace: {{ .Release.Namespace }}
  serverNames:
    - {{ $service }}
    - localhost
    {{- range fromYamlArray (include "vkgateway.etcdHosts" .) }}
    - {{ . }}
    {{- end }}
{{- end -}}

{{/* Arguments of a member, as a YAML list. */}}
{{- define "vkgateway.etcdArguments" -}}
{{- $domain := printf "vkgateway-etcd.%s.svc" .Release.Namespace -}}
{{- $peers := list -}}
{{- range $member := until (int .Values.etcd.members) -}}
{{- $peers = append $peers (printf "vkgateway-etcd-%d=https://vkgateway-etcd-%d.%s:2380" $member $member $domain) -}}
{{- end -}}
- --name=$(POD_NAME)
# A directory that etcd creates with the mode that it wants.
- --data-dir=/var/lib/etcd/data
- --listen-client-urls=https://0.0.0.0:2379
- --advertise-client-urls=https://$(POD_NAME).{{ $domain }}:2379
- --listen-peer-urls=https://0.0.0.0:2380
- --initial-advertise-peer-urls=https://$(POD_NAME).{{ $domain }}:2380
- --initial-cluster={{ join "," $peers }}
- --initial-cluster-token=vkgateway-etcd
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
