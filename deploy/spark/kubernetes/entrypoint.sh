#!/bin/sh
# What a container of Spark on Kubernetes runs: an executor, or a driver by spark-submit. Spark names the first as
# `executor` and passes its settings in variables.
set -eu

case "${1:-}" in
executor)
  # Spark numbers the options of the JVM: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, …
  number=0
  set --
  while value=$(printenv "SPARK_JAVA_OPT_$number"); do
    set -- "$@" "$value"
    number=$((number + 1))
  done
  exec "$JAVA_HOME/bin/java" "$@" \
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;
driver)
  # As Spark's own driver container: the address is that of the pod.
  shift
  exec "$SPARK_HOME/bin/spark-submit" --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
    --deploy-mode client "$@"
  ;;
*)
  exec "$@"
  ;;
esac
