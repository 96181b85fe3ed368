{{/* broker.yaml of the brokers, and pipelines.yaml of the jobs. The user's `settings` override what is set here. */}}

{{- define "headwater.broker.base" -}}
{{- $root := . -}}
{{- $broker := .Values.broker -}}
data_dir: /var/lib/headwater/data
listeners:
{{- range $name := list "mqtt" "mqtts" "ws" "wss" }}
{{- $listener := index $broker.listeners $name }}
{{- if $listener.enabled }}
  {{ $name }}:
    bind: {{ printf "%s:%v" $broker.address $listener.port | quote }}
    {{- include "headwater.broker.tls" (list $root $name) | indent 4 }}
{{- else if eq $name "mqtt" }}
  mqtt:
    bind: {{ printf "127.0.0.1:%v" $listener.port | quote }}
{{- end }}
{{- end }}
{{- range $name := list "flight" "admin" }}
  {{ $name }}:
    bind: {{ printf "%s:%v" $broker.address (index $broker.listeners $name).port | quote }}
    {{- include "headwater.broker.tls" (list $root $name) | indent 4 }}
{{- end }}
admin:
  hosts:
    {{- $admin := printf "%s-admin" (include "headwater.fullname" .) }}
    - {{ $admin }}
    - {{ $admin }}.{{ .Release.Namespace }}
    - {{ $admin }}.{{ .Release.Namespace }}.svc
    - {{ $admin }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
    - {{ include "headwater.host" (list . "*") | quote }}
auth:
  allow_anonymous: {{ $broker.auth.allowAnonymous }}
  open_metrics: {{ .Values.metrics.open }}
{{- if $broker.auth.existingSecret }}
  password_file: /etc/headwater/auth/{{ $broker.auth.usersKey }}
{{- if $broker.auth.aclKey }}
  acl_file: /etc/headwater/auth/{{ $broker.auth.aclKey }}
{{- end }}
{{- end }}
{{- if .Values.cluster.enabled }}
{{ include "headwater.broker.cluster" . }}
{{- end }}
{{- end -}}

{{- define "headwater.broker.tls" -}}
{{- if include "headwater.tls" . -}}
{{- $tls := (index . 0).Values.broker.tls }}
tls:
  cert: /etc/headwater/tls/{{ $tls.certKey }}
  key: /etc/headwater/tls/{{ $tls.keyKey }}
{{- if and $tls.clientCaKey (eq (index . 1) "mqtts") }}
  client_ca: /etc/headwater/tls/{{ $tls.clientCaKey }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* The name of a node and what follows from it are variables of its pod: see statefulset.yaml. */}}
{{- define "headwater.broker.cluster" -}}
{{- $cluster := .Values.cluster -}}
cluster:
  name: {{ default (include "headwater.fullname" .) $cluster.name }}
  listen: {{ printf "%s:%v" .Values.broker.address $cluster.port | quote }}
  secret_file: /etc/headwater/cluster/{{ $cluster.secretKey }}
  plaintext: {{ $cluster.plaintext }}
  {{- if $cluster.tls.existingSecret }}
  tls:
    ca: /etc/headwater/mesh/ca.pem
  {{- end }}
  etcd:
    endpoints:
      {{- toYaml $cluster.etcd.endpoints | nindent 6 }}
    {{- if $cluster.etcd.existingSecret }}
    {{- range $key, $file := dict "ca" $cluster.etcd.caKey "cert" $cluster.etcd.certKey "key" $cluster.etcd.keyKey "password_file" $cluster.etcd.passwordKey }}
    {{- if $file }}
    {{ $key }}: /etc/headwater/etcd/{{ $file }}
    {{- end }}
    {{- end }}
    {{- end }}
    {{- if $cluster.etcd.user }}
    user: {{ $cluster.etcd.user | quote }}
    {{- end }}
{{- end -}}

{{- define "headwater.broker.settings" -}}
{{- $base := include "headwater.broker.base" . | fromYaml -}}
{{- toYaml (mergeOverwrite $base (deepCopy .Values.broker.settings)) -}}
{{- end -}}

{{/* The Flight addresses of this release's brokers, as `servers` of the jobs: the nodes of a cluster are one address. */}}
{{- define "headwater.jobs.servers" -}}
{{- $root := . -}}
{{- $scheme := ternary "grpc+tls" "grpc" (eq (include "headwater.tls" (list . "flight")) "true") -}}
{{- $hosts := list -}}
{{- range $number := until (int .Values.broker.replicas) -}}
{{- $node := printf "%s-%d" (include "headwater.fullname" $root) $number -}}
{{- $hosts = append $hosts (printf "%s:%v" (include "headwater.host" (list $root $node)) $root.Values.broker.listeners.flight.port) -}}
{{- end -}}
{{- if .Values.cluster.enabled -}}
- {{ $scheme }}://{{ join "/" $hosts }}
{{- else -}}
{{- range $hosts }}
- {{ $scheme }}://{{ . }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "headwater.jobs.base" -}}
{{- $jobs := .Values.jobs -}}
{{- $storage := trimSuffix "/" $jobs.storage -}}
{{- if .Values.broker.enabled }}
servers:
  {{- include "headwater.jobs.servers" . | trim | nindent 2 }}
{{- end }}
{{- if $jobs.access.existingSecret }}
access:
  user: {{ $jobs.access.user | quote }}
  password: file:/etc/headwater/broker/{{ $jobs.access.passwordKey }}
  {{- if $jobs.access.caKey }}
  tls: {ca: "file:/etc/headwater/broker/{{ $jobs.access.caKey }}", cert: null, key: null}
  {{- end }}
{{- end }}
spark:
  driver_memory: {{ $jobs.driverMemory }}
  packages: {{ toJson $jobs.packages }}
  # The root of a container is read-only.
  warehouse: /tmp/warehouse
  conf: {spark.jars.ivy: /tmp/ivy}
telemetry: {table_path: "{{ $storage }}/bronze/telemetry", checkpoint: "{{ $storage }}/checkpoints/telemetry"}
status: {checkpoint: "{{ $storage }}/checkpoints/status"}
actions: {root: "{{ $storage }}/tables"}
silver: {root: "{{ $storage }}/tables", checkpoint: "{{ $storage }}/checkpoints/silver"}
{{- end -}}

{{- define "headwater.jobs.settings" -}}
{{- $base := include "headwater.jobs.base" . | fromYaml -}}
{{- toYaml (mergeOverwrite $base (deepCopy .Values.jobs.settings)) -}}
{{- end -}}

{{/* What executors may not do; Spark adds the rest of their pods. */}}
{{- define "headwater.jobs.executor" -}}
{{- $jobs := .Values.jobs -}}
apiVersion: v1
kind: Pod
spec:
  securityContext: {{- include "headwater.podSecurity" $jobs.podSecurityContext | nindent 4 }}
  {{- with $jobs.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $jobs.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: executor
      # Spark unpacks what a job brings beside its working folder, so the root stays writable.
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
{{- end -}}
