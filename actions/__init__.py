"""The action engine: what people ask of devices, decided, sent and followed to its end. It needs no Spark.

`engine` decides and touches nothing, `store` reads and writes its tables, `job` turns the two; `status_rows`,
`status_batch` and `event_log` take in what devices and brokers say; `fleet_desk` is what people do with the tables.
"""
