{{/* The first words of a driver that makes its executors as pods; call with (list $ NAME IMAGE). The same as in
deploy/spark/kubernetes/telemetry.yaml. */}}
{{- define "headwater.jobs.submit" -}}
{{- $root := index . 0 -}}
{{- $jobs := $root.Values.jobs -}}
{{- $full := include "headwater.fullname" $root -}}
- /opt/spark/bin/spark-submit
- --master=k8s://https://kubernetes.default.svc
- --deploy-mode=client
{{- with $jobs.packages }}
- --packages={{ join "," . }}
{{- end }}
- --conf=spark.jars.ivy=/tmp/ivy
- --conf=spark.kubernetes.namespace=$(POD_NAMESPACE)
- --conf=spark.kubernetes.driver.pod.name=$(POD_NAME)
- --conf=spark.kubernetes.container.image={{ index . 2 }}
- --conf=spark.kubernetes.container.image.pullPolicy={{ $jobs.image.pullPolicy }}
{{- with $root.Values.imagePullSecrets }}
- --conf=spark.kubernetes.container.image.pullSecrets={{ range $i, $secret := . }}{{ if $i }},{{ end }}{{ $secret.name }}{{ end }}
{{- end }}
- --conf=spark.kubernetes.authenticate.executor.serviceAccountName={{ $full }}-executor
{{- if $jobs.access.existingSecret }}
- --conf=spark.kubernetes.executor.secrets.{{ $jobs.access.existingSecret }}=/etc/headwater/broker
{{- end }}
{{- if $jobs.claim.existingClaim }}
{{- range $key, $value := dict "options.claimName" $jobs.claim.existingClaim "mount.path" $jobs.claim.mountPath }}
- --conf=spark.kubernetes.executor.volumes.persistentVolumeClaim.tables.{{ $key }}={{ $value }}
{{- end }}
{{- end }}
- --conf=spark.kubernetes.executor.podTemplateFile=/etc/headwater/settings/executor.yaml
- --conf=spark.kubernetes.executor.podTemplateContainerName=executor
- --conf=spark.driver.host={{ index . 1 }}
- --conf=spark.driver.bindAddress=$(POD_IP)
- --conf=spark.driver.port=7078
- --conf=spark.driver.blockManager.port=7079
- --conf=spark.driver.memory={{ $jobs.driverMemory }}
- --conf=spark.executor.instances={{ $jobs.executors.instances }}
- --conf=spark.executor.memory={{ $jobs.executors.memory }}
- --conf=spark.executor.cores={{ $jobs.executors.cores }}
- --conf=spark.pyspark.python=python3
- --conf=spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension
- --conf=spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog
- --conf=spark.driver.extraJavaOptions=-Xss16m
{{- end -}}
