"""The Delta tables of headwater: one field table each, in a module per family, and how they are created.

Users insert into `actions` and `action_requests` and own `devices` and `artifacts`; jobs write the others.
docs/reference/tables.md shows all of them.
"""

from broker_edge.fields import Field, FieldTable
from sinks.tables.actions import (
    ACTION_EVENTS,
    ACTION_EVENTS_ARCHIVE,
    ACTION_JOURNAL,
    ACTION_REQUESTS,
    ACTION_REQUESTS_ARCHIVE,
    ACTION_STATE,
    ACTION_TARGETS,
    ACTION_TARGETS_ARCHIVE,
    ACTIONS,
    BROKER_LOGS,
)
from sinks.tables.create import PROPERTIES, TABLES, create_by_name, create_by_path, uri_of
from sinks.tables.devices import ARTIFACTS, DEVICE_STATE, DEVICES, SELECTORS
from sinks.tables.existing import describe_in_spark, update_by_path, update_in_spark
from sinks.tables.ingest import BESIDE_SILVER, DQ_RESULTS, INGEST_GAPS, QUARANTINE, QUARANTINE_ARCHIVE
from sinks.tables.records import BRONZE, SILVER, silver_table
from sinks.tables.tenant import DEFAULT_TENANT, TENANT
from sinks.tables.views import VIEWS, View, temporary_views

__all__ = [
    "ACTIONS",
    "ACTION_EVENTS",
    "ACTION_EVENTS_ARCHIVE",
    "ACTION_JOURNAL",
    "ACTION_REQUESTS",
    "ACTION_REQUESTS_ARCHIVE",
    "ACTION_STATE",
    "ACTION_TARGETS",
    "ACTION_TARGETS_ARCHIVE",
    "ARTIFACTS",
    "BESIDE_SILVER",
    "BROKER_LOGS",
    "BRONZE",
    "DEFAULT_TENANT",
    "DEVICES",
    "DEVICE_STATE",
    "DQ_RESULTS",
    "INGEST_GAPS",
    "PROPERTIES",
    "QUARANTINE",
    "QUARANTINE_ARCHIVE",
    "SELECTORS",
    "SILVER",
    "TABLES",
    "TENANT",
    "VIEWS",
    "Field",
    "FieldTable",
    "View",
    "create_by_name",
    "create_by_path",
    "describe_in_spark",
    "silver_table",
    "temporary_views",
    "update_by_path",
    "update_in_spark",
    "uri_of",
]
