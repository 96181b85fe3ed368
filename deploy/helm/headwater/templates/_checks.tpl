{{/* Combinations of values that install something else than was meant are refused, each with one sentence. */}}

{{- define "headwater.checks" -}}
{{- if not (or .Values.broker.enabled .Values.jobs.enabled) -}}
{{- fail "broker.enabled and jobs.enabled are false: there is nothing to install" -}}
{{- end -}}
{{- if .Values.broker.enabled -}}
{{- include "headwater.checks.broker" . -}}
{{- include "headwater.checks.listeners" . -}}
{{- end -}}
{{- if .Values.cluster.enabled -}}
{{- include "headwater.checks.cluster" . -}}
{{- end -}}
{{- if .Values.metrics.serviceMonitor.enabled -}}
{{- include "headwater.checks.metrics" . -}}
{{- end -}}
{{- if .Values.jobs.enabled -}}
{{- include "headwater.checks.jobs" . -}}
{{- end -}}
{{- end -}}

{{- define "headwater.checks.broker" -}}
{{- $broker := .Values.broker -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is empty: build the image of the broker (deploy/Dockerfile), push it to your registry, and name it" -}}
{{- end -}}
{{- if and (not $broker.persistence.enabled) (not $broker.persistence.acceptLoss) -}}
{{- fail "broker.persistence.enabled is false: acknowledged records would go with their pod; write broker.persistence.acceptLoss: true if that is wanted" -}}
{{- end -}}
{{- range $key := list "data_dir" "cluster" -}}
{{- if hasKey $broker.settings $key -}}
{{- fail (printf "broker.settings.%s is set: the chart decides it; use the values broker.persistence and cluster" $key) -}}
{{- end -}}
{{- end -}}
{{- $schema := .Files.Get "files/broker.schema.json" | fromJson -}}
{{- include "headwater.checks.settings" (list $schema.properties $broker.settings "broker.settings") -}}
{{- $auth := default dict (get $broker.settings "auth") -}}
{{- $token := default dict (get $auth "token") -}}
{{- $certificate := default dict (get $auth "certificate") -}}
{{- $knows := or $broker.auth.existingSecret (get $auth "password_file") (get $token "keys_file") (ne (default "ignored" (get $certificate "user")) "ignored") -}}
{{- $anonymous := or $broker.auth.allowAnonymous (eq (toString (get $auth "allow_anonymous")) "true") -}}
{{- if not (or $knows $anonymous) -}}
{{- fail "broker.auth: the listeners are reachable from other pods and there are no users; name a Secret with users (broker.auth.existingSecret), or write broker.auth.allowAnonymous: true to let everybody in" -}}
{{- end -}}
{{- if and $broker.auth.aclKey (not $broker.auth.existingSecret) -}}
{{- fail "broker.auth.aclKey is set without broker.auth.existingSecret: name the Secret that has this key" -}}
{{- end -}}
{{- end -}}

{{- define "headwater.checks.listeners" -}}
{{- $broker := .Values.broker -}}
{{- range $name := list "mqtts" "wss" -}}
{{- if and (index $broker.listeners $name).enabled (not $broker.tls.existingSecret) -}}
{{- fail (printf "broker.listeners.%s is enabled without a certificate: name a Secret of type kubernetes.io/tls (broker.tls.existingSecret)" $name) -}}
{{- end -}}
{{- end -}}
{{- if not (or $broker.listeners.mqtt.enabled $broker.listeners.mqtts.enabled $broker.listeners.ws.enabled $broker.listeners.wss.enabled) -}}
{{- fail "broker.listeners: none of mqtt, mqtts, ws and wss is enabled, so no device could connect" -}}
{{- end -}}
{{- $ports := dict -}}
{{- range $name, $listener := $broker.listeners -}}
{{- if or (has $name (list "flight" "admin")) $listener.enabled -}}
{{- $port := toString $listener.port -}}
{{- if hasKey $ports $port -}}
{{- fail (printf "broker.listeners.%s and %s have one port, %s: give each its own" (get $ports $port) $name $port) -}}
{{- end -}}
{{- $_ := set $ports $port $name -}}
{{- end -}}
{{- end -}}
{{- range $name, $listener := default dict (get $broker.settings "listeners") -}}
{{- if hasKey (default dict $listener) "bind" -}}
{{- fail (printf "broker.settings.listeners.%s.bind is set: Services and probes would miss it; use broker.address and broker.listeners.%s" $name $name) -}}
{{- end -}}
{{- $tls := default dict (get (default dict $listener) "tls") -}}
{{- if and (eq $name "admin") (eq (toString (get $tls "client_auth")) "required") -}}
{{- fail "broker.settings.listeners.admin.tls.client_auth is required: probes show no certificate; write optional" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "headwater.checks.cluster" -}}
{{- $cluster := .Values.cluster -}}
{{- if not .Values.broker.enabled -}}
{{- fail "cluster.enabled is true and broker.enabled is false: the nodes of a cluster are brokers" -}}
{{- end -}}
{{- if ne (int .Values.broker.replicas) 3 -}}
{{- fail (printf "broker.replicas is %d: a cluster has 3 nodes" (int .Values.broker.replicas)) -}}
{{- end -}}
{{- if not .Values.broker.persistence.enabled -}}
{{- fail "broker.persistence.enabled is false: a node answers for what is on its disk, so a cluster needs it" -}}
{{- end -}}
{{- if not $cluster.etcd.endpoints -}}
{{- fail "cluster.etcd.endpoints is empty: name the members of etcd, as https://HOST:2379" -}}
{{- end -}}
{{- if not $cluster.existingSecret -}}
{{- fail "cluster.existingSecret is empty: name the Secret with the file that `headwater cluster init` wrote" -}}
{{- end -}}
{{- if not (or $cluster.tls.existingSecret $cluster.plaintext) -}}
{{- fail "cluster.tls.existingSecret is empty: name the Secret with the certificates of the nodes, or write cluster.plaintext: true for a network that nobody else uses" -}}
{{- end -}}
{{- range $cluster.etcd.endpoints -}}
{{- if and (hasPrefix "http://" .) (not $cluster.plaintext) -}}
{{- fail (printf "cluster.etcd.endpoints has %s without TLS: write https, or cluster.plaintext: true for a network that nobody else uses" .) -}}
{{- end -}}
{{- if and (hasPrefix "https://" .) (not $cluster.etcd.existingSecret) -}}
{{- fail (printf "cluster.etcd.existingSecret is empty: %s needs the authority of its certificate" .) -}}
{{- end -}}
{{- end -}}
{{- if and $cluster.etcd.user (not $cluster.etcd.passwordKey) -}}
{{- fail "cluster.etcd.user is set without cluster.etcd.passwordKey: name the key of the password in cluster.etcd.existingSecret" -}}
{{- end -}}
{{- end -}}

{{- define "headwater.checks.metrics" -}}
{{- $auth := default dict (get .Values.broker.settings "auth") -}}
{{- $open := or .Values.metrics.open .Values.broker.auth.allowAnonymous (eq (toString (get $auth "allow_anonymous")) "true") -}}
{{- if not (or $open .Values.metrics.serviceMonitor.basicAuthSecret) -}}
{{- fail "metrics.serviceMonitor.enabled: /metrics needs a user; name a Secret with username and password (metrics.serviceMonitor.basicAuthSecret), or write metrics.open: true" -}}
{{- end -}}
{{- if and (include "headwater.tls" (list . "admin")) (not .Values.metrics.serviceMonitor.tlsConfig) -}}
{{- fail "metrics.serviceMonitor.tlsConfig is empty: admin HTTP speaks TLS, so name its authority, for example {ca: {secret: {name: …, key: ca.crt}}}" -}}
{{- end -}}
{{- end -}}

{{- define "headwater.checks.jobs" -}}
{{- $jobs := .Values.jobs -}}
{{- if not $jobs.image.repository -}}
{{- fail "jobs.image.repository is empty: build the image of the jobs (deploy/spark/kubernetes/Dockerfile), push it to your registry, and name it" -}}
{{- end -}}
{{- if not $jobs.storage -}}
{{- fail "jobs.storage is empty: tables and checkpoints would go with their pod; name an object store, as s3a://bucket/headwater, or a folder of a claim" -}}
{{- end -}}
{{- if hasPrefix "/" $jobs.storage -}}
{{- if not $jobs.claim.existingClaim -}}
{{- fail (printf "jobs.storage is the folder %s and jobs.claim.existingClaim is empty: tables and checkpoints would go with their pod" $jobs.storage) -}}
{{- end -}}
{{- if not (or (eq $jobs.storage $jobs.claim.mountPath) (hasPrefix (printf "%s/" $jobs.claim.mountPath) $jobs.storage)) -}}
{{- fail (printf "jobs.storage is %s, which is not below jobs.claim.mountPath, %s: it would go with its pod" $jobs.storage $jobs.claim.mountPath) -}}
{{- end -}}
{{- end -}}
{{- $defaults := .Files.Get "files/pipelines.yaml" | fromYaml -}}
{{- include "headwater.checks.jobSettings" (list $defaults $jobs.settings "jobs.settings") -}}
{{- if not (or .Values.broker.enabled (get $jobs.settings "servers") (get $jobs.settings "brokers")) -}}
{{- fail "jobs.settings.servers is empty: without brokers in this release, name the Flight addresses of yours" -}}
{{- end -}}
{{- if and $jobs.access.existingSecret (not $jobs.access.user) -}}
{{- fail "jobs.access.user is empty: name the user of the password in jobs.access.existingSecret" -}}
{{- end -}}
{{- if and .Values.broker.enabled .Values.broker.auth.existingSecret (not (or $jobs.access.existingSecret (get $jobs.settings "access") (get $jobs.settings "brokers"))) -}}
{{- fail "jobs.access.existingSecret is empty and the brokers have users: name the Secret with the password of the jobs" -}}
{{- end -}}
{{- $seen := dict -}}
{{- range $group, $what := $jobs.groups -}}
{{- if ne (toString (get $what "enabled")) "false" -}}
{{- range $what.run -}}
{{- if hasKey $seen . -}}
{{- fail (printf "jobs.groups: %s is in %s and in %s; two drivers on one checkpoint would fail, so keep it in one group" . (get $seen .) $group) -}}
{{- end -}}
{{- $_ := set $seen . $group -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $seen -}}
{{- fail "jobs.groups: no group is enabled, so there is no job to run" -}}
{{- end -}}
{{- end -}}

{{/* A key that the program does not know would end it at its start: it is refused here. conf/broker.schema.json has the
keys of the broker; call with (list PROPERTIES SETTINGS PATH). */}}
{{- define "headwater.checks.settings" -}}
{{- $properties := index . 0 -}}
{{- $path := index . 2 -}}
{{- range $key, $value := index . 1 -}}
{{- $known := get $properties $key -}}
{{- if not (hasKey $properties $key) -}}
{{- fail (printf "%s.%s is not a setting of the broker: docs/reference/settings.md lists them" $path $key) -}}
{{- else if and (kindIs "map" $value) (hasKey $known "properties") -}}
{{- include "headwater.checks.settings" (list $known.properties $value (printf "%s.%s" $path $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The same for jobs: conf/pipelines.yaml has all keys with their defaults, and an empty map stands for any. */}}
{{- define "headwater.checks.jobSettings" -}}
{{- $defaults := index . 0 -}}
{{- $path := index . 2 -}}
{{- range $key, $value := index . 1 -}}
{{- $default := get $defaults $key -}}
{{- if not (hasKey $defaults $key) -}}
{{- fail (printf "%s.%s is not a setting of the jobs: docs/reference/job-settings.md lists them" $path $key) -}}
{{- else if and (kindIs "map" $value) (kindIs "map" $default) -}}
{{- if $default -}}
{{- include "headwater.checks.jobSettings" (list $default $value (printf "%s.%s" $path $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
