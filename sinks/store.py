"""How an object store is reached: one map of options, and what the libraries that open tables make of it.

The options have the names of the `object_store` library, which deltalake uses. This is the only module that knows the
other two dialects: pyarrow's filesystems and Hadoop's S3A. Secrets are references (`broker_edge.credentials`) and are
resolved here, where a table is opened; a `StoreAccess` itself may travel to tasks and appear in a plan.

It opens no table, and starts no Spark session.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs

from broker_edge.credentials import REFERENCE, resolve
from broker_edge.errors import ConfigError, SinkError

_OPTIONS = {
    "aws_endpoint": "fs.s3a.endpoint",
    "aws_region": "fs.s3a.endpoint.region",
    "aws_access_key_id": "fs.s3a.access.key",
    "aws_secret_access_key": "fs.s3a.secret.key",
    "aws_session_token": "fs.s3a.session.token",
    "aws_allow_http": None,
    "aws_virtual_hosted_style_request": None,
}
"""Every option, with S3A's property of the same value. The last two have none."""

_SECRETS = frozenset({"aws_secret_access_key", "aws_session_token"})
_FLAGS = frozenset({"aws_allow_http", "aws_virtual_hosted_style_request"})

_VARIABLES = {
    "aws_endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "aws_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
"""What the libraries read from different variables, or not at all. Each finds credentials in its own usual places."""

_OTHER_STORES = ("azure_", "google_")
_OTHER_ENVIRONMENT = (
    "GOOGLE_APPLICATION_CREDENTIALS for gs://; AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET for abfss://"
)
"""What deltalake and pyarrow both read."""

RETRIES = 5
RETRY_S = 10
CONNECT_S = 5
"""How long one request is repeated: a few seconds. A job that fails is started again, which is told and can be stopped;
the library alone would be silent for three minutes."""

S3_SCHEMES = ("s3://", "s3a://")


def is_s3(path: str) -> bool:
    """Whether a path is in S3, in either spelling."""
    return path.startswith(S3_SCHEMES)


def is_remote(path: str) -> bool:
    """Whether a path is in an object store. A volume of Databricks is a folder."""
    return "://" in path and not path.startswith("file://")


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Options by name, sorted; values of secrets are references. Without any, the environment decides."""

    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StoreAccess:
        """Checks the options, and adds endpoint and region of the environment. Raises ConfigError for an unknown name,
        and for a secret that is not a reference."""
        for name, value in options.items():
            if name.startswith(_OTHER_STORES):
                raise ConfigError(
                    f"storage.options: {name} is not an option of S3, and other stores are reached with their "
                    f"environment: {_OTHER_ENVIRONMENT}"
                )
            if name not in _OPTIONS:
                near = difflib.get_close_matches(name, _OPTIONS, n=1, cutoff=0.0)
                raise ConfigError(f"storage.options: unknown option {name}: did you mean {near[0]}?")
            if name in _SECRETS and REFERENCE.fullmatch(value) is None:
                raise ConfigError(
                    f"storage.options: {name} is a secret: write file:PATH, env:NAME or secret:SCOPE/KEY, never the "
                    "secret itself"
                )
            if name in _FLAGS and value not in ("true", "false"):
                raise ConfigError(f"storage.options: {name} is true or false, in quotes")
        if ("aws_access_key_id" in options) != ("aws_secret_access_key" in options):
            raise ConfigError("storage.options: aws_access_key_id and aws_secret_access_key belong together: give both")
        found = dict(options)
        for name, variables in _VARIABLES.items():
            of_environment = next(filter(None, map(os.environ.get, variables)), None)
            if of_environment is not None:
                found.setdefault(name, of_environment)
        return cls(tuple(sorted(found.items())))

    def deltalake(self) -> dict[str, str]:
        """For `storage_options` of deltalake, with the current secrets. Raises ConfigError."""
        patience = {
            "max_retries": str(RETRIES),
            "retry_timeout": f"{RETRY_S}s",
            "connect_timeout": f"{CONNECT_S}s",
        }
        return self.object_store() | patience

    def object_store(self) -> dict[str, str]:
        """The options of the `object_store` library, with the current secrets. Raises ConfigError."""
        found = self._resolved()
        if found.get("aws_endpoint", "").startswith("http://"):
            # The library refuses such an address otherwise; whoever writes it has decided already.
            found.setdefault("aws_allow_http", "true")
        return found

    def filesystem(self, uri: str) -> tuple[fs.FileSystem, str]:
        """For pyarrow: the filesystem of `uri`, and the path in it. Raises SinkError for a kind of store that it does
        not know, and ConfigError."""
        try:
            if not is_s3(uri):
                filesystem, base = fs.FileSystem.from_uri(uri)
                return filesystem, base.rstrip("/")
            found = self._resolved()
            filesystem = fs.S3FileSystem(
                access_key=found.get("aws_access_key_id"),
                secret_key=found.get("aws_secret_access_key"),
                session_token=found.get("aws_session_token"),
                region=found.get("aws_region"),
                endpoint_override=found.get("aws_endpoint"),
                force_virtual_addressing=found.get("aws_virtual_hosted_style_request") == "true",
            )
            return filesystem, uri.partition("://")[2].rstrip("/")
        except (pa.ArrowException, ValueError) as error:
            raise SinkError(
                f"cannot write files to {uri} ({error}): use a folder, s3://, gs:// or abfss://, "
                "or bronze.writer: spark"
            ) from error

    def hadoop(self) -> dict[str, str]:
        """For the Hadoop configuration of a running session, with the current secrets. Never for the session's own
        settings: Spark shows those, and passes them on the command line of its processes. Raises ConfigError."""
        found = self._resolved()
        properties = {key: found[name] for name, key in _OPTIONS.items() if key is not None and name in found}
        if "aws_endpoint" in found or "aws_virtual_hosted_style_request" in found:
            is_virtual = found.get("aws_virtual_hosted_style_request") == "true"
            properties["fs.s3a.path.style.access"] = str(not is_virtual).lower()
        if "aws_secret_access_key" in found:
            kind = "TemporaryAWSCredentialsProvider" if "aws_session_token" in found else "SimpleAWSCredentialsProvider"
            properties["fs.s3a.aws.credentials.provider"] = f"org.apache.hadoop.fs.s3a.{kind}"
        return properties

    def _resolved(self) -> dict[str, str]:
        return {
            name: resolve(value, what=f"storage.options: {name}") if REFERENCE.fullmatch(value) else value
            for name, value in self.options
        }
