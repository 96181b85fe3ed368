{{/* Parts of the StatefulSet: the Secrets that a broker reads, and the settings that differ from node to node. */}}

{{/* Folder below /etc/headwater → Secret. */}}
{{- define "headwater.broker.secrets" -}}
{{- with .Values.broker.auth.existingSecret }}
auth: {{ . }}
{{- end }}
{{- with .Values.broker.tls.existingSecret }}
tls: {{ . }}
{{- end }}
{{- if .Values.cluster.enabled }}
cluster: {{ .Values.cluster.existingSecret }}
{{- with .Values.cluster.etcd.existingSecret }}
etcd: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A node has the name of its pod, which stays with its volume. */}}
{{- define "headwater.broker.node" -}}
{{- $root := . -}}
{{- $cluster := .Values.cluster -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- {name: HEADWATER_CLUSTER__NODE, value: $(POD_NAME)}
{{- if $cluster.tls.existingSecret }}
- {name: HEADWATER_CLUSTER__TLS__CERT, value: /etc/headwater/mesh/node.pem}
- {name: HEADWATER_CLUSTER__TLS__KEY, value: /etc/headwater/mesh/node.key}
{{- end }}
{{- $own := include "headwater.host" (list . "$(POD_NAME)") }}
- name: HEADWATER_CLUSTER__ADVERTISE__MESH
  value: {{ printf "%s:%v" $own $cluster.port | quote }}
{{- $listeners := .Values.broker.listeners }}
{{- $mqtt := ternary $listeners.mqtt.port (ternary $listeners.mqtts.port $listeners.mqtt.port $listeners.mqtts.enabled) $listeners.mqtt.enabled }}
{{- range $name, $port := dict "mqtt" $mqtt "flight" $listeners.flight.port "admin" $listeners.admin.port }}
{{- $told := index $cluster.advertise $name | replace "{node}" "$(POD_NAME)" }}
- name: HEADWATER_CLUSTER__ADVERTISE__{{ upper $name }}
  value: {{ default (printf "%s:%v" $own $port) $told | quote }}
{{- end }}
{{- end -}}
