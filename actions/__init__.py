"""The action engine: decides, sends and follows what users want devices to do. Needs no Spark.

`engine` makes the decisions without I/O, `store` reads and writes its tables, `job` runs the loop around the two;
`status_rows`, `status_batch` and `event_log` record what devices and brokers report; users work through `fleet_desk`.
"""
