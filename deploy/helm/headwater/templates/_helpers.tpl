{{/* Names, labels and images that the other templates use. */}}

{{- define "headwater.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "headwater.fullname" -}}
{{- $name := include "headwater.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of a part; it may never change for a release. Call with (list $ PART). */}}
{{- define "headwater.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "headwater.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "headwater.labels" -}}
{{- $root := index . 0 -}}
{{ include "headwater.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Call with (list $ IMAGE). */}}
{{- define "headwater.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default $root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- define "headwater.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "headwater.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The name under which a broker is reached in the Kubernetes cluster; call with (list $ NODE). */}}
{{- define "headwater.host" -}}
{{- $root := index . 0 -}}
{{- $full := include "headwater.fullname" $root -}}
{{ index . 1 }}.{{ $full }}-nodes.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}
{{- end -}}

{{/* Whether listener NAME has TLS: `true` or nothing; call with (list $ NAME). */}}
{{- define "headwater.tls" -}}
{{- $tls := (index . 0).Values.broker.tls -}}
{{- if $tls.existingSecret -}}
{{- if or (has (index . 1) (list "mqtts" "wss")) (and (eq (index . 1) "flight") $tls.flight) (and (eq (index . 1) "admin") $tls.admin) -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What every container may not do. */}}
{{- define "headwater.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "headwater.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- with . }}
{{ toYaml . }}
{{- end }}
{{- end -}}
