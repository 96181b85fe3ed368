"""A fleet on a cluster of machines: brokers with TLS, users and rights, devices on a machine of their own, and all jobs
in one driver, with tables, checkpoints and event logs in S3.

Secrets are files, and everything that is told to Spark, to the jobs and to the brokers refers to them. The inventory
and the actions come from the command line, as an operator's do.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from actions.fleet_desk import FleetDesk
from broker_edge.secured_folder import HOSTS, OPERATOR, PIPELINE, SecuredFolder
from pipelines.spark.pack import JOB
from support.cluster_load import headwater_on
from support.cluster_sites import Site
from support.leaks import Secrets
from support.netns_nodes import REPOSITORY, Node, within
from support.programs import clean_environment
from support.s3 import BUCKET, HISTORY, SECRET, USER, S3Server
from support.spark_cluster import Cluster, until

JOBS = ("telemetry", "status", "silver", "actions")
SHIPPED = ("pipeline.password", "store.secret", "ca.pem")
"""What the jobs read on each machine, in the working folder of their process."""
TABLES = ("actions", "devices", "action_targets", "action_events", "action_state", "device_state", "silver_telemetry")

_END_S = 120.0
_FIRMWARE_BYTES = 50_000
_PROFILE = "store.profile"


@dataclass(slots=True)
class Fleet:
    """The sites, the jobs on the driver's machine, and an operator. `folder` is where the test keeps its files."""

    cluster: Cluster
    folder: Path
    sites: list[Site]
    yard: Node
    restarts: list[str] = field(default_factory=list)
    """The last lines of each driver that ended by itself. A supervisor would start it again, and so does `keep`."""
    _job: subprocess.Popen[bytes] | None = None

    @property
    def s3(self) -> S3Server:
        assert self.cluster.s3 is not None, "the cluster has no S3 server"
        return self.cluster.s3

    @property
    def tables(self) -> Path:
        """The tables of actions and silver, as the files of the server."""
        return self.s3.folder / BUCKET / "fleet"

    @property
    def bronze(self) -> Path:
        return self.s3.folder / BUCKET / "bronze"

    def secrets(self, scratch: Path) -> Secrets:
        """All passwords, the secret of the store, and the lines of the private keys."""
        found = {}
        for path in (self.sites[0].files.root / "secrets").glob("*.password"):
            found[path.name.removesuffix(".password")] = path.read_text().strip()
        keys = [key for site in self.sites for key in (site.files.root / "tls").glob("*.key")]
        lines = [line for key in keys for line in key.read_text().splitlines() if not line.startswith("-----")]
        assert {OPERATOR, PIPELINE, self.sites[1].probe, *self.sites[1].ids} <= found.keys()
        assert len(keys) == 1 + len(self.sites), "the brokers and their authority"
        return Secrets(scratch, found, [SECRET, *(line for line in lines if len(line) > 16)])

    # -- the jobs ----------------------------------------------------------------------------------------------------

    def prepare_driver(self) -> None:
        """Puts settings, and the files that they refer to, into the folder of the jobs."""
        there, first = self.cluster.packed, self.sites[0]
        (there / "pipelines.yaml").write_text(yaml.safe_dump(self._settings()))
        (there / "schemas").mkdir()
        shutil.copy(REPOSITORY / "conf/schemas/telemetry.yaml", there / "schemas")
        shutil.copy(first.password_of(PIPELINE), there / "pipeline.password")
        shutil.copy(first.files.ca, there / "ca.pem")
        (there / "store.secret").write_text(f"{SECRET}\n")
        # The event log is opened before a job can say how its store is reached.
        (there / _PROFILE).write_text(f"[default]\naws_access_key_id = {USER}\naws_secret_access_key = {SECRET}\n")
        uid = self.cluster.node("driver").uid
        for name in (*SHIPPED, _PROFILE):
            (there / name).chmod(0o600)
            os.chown(there / name, uid, uid)

    def _settings(self) -> dict[str, Any]:
        root = f"s3://{BUCKET}"
        checkpoints = {name: f"s3a://{BUCKET}/checkpoints/{name}" for name in ("telemetry", "status", "silver")}
        return {
            "brokers": [{"server": site.files.server(), "name": site.name} for site in self.sites],
            "access": {"user": PIPELINE, "password": "file:pipeline.password", "tls": {"ca": "file:ca.pem"}},
            "storage": {"options": self.s3.options() | {"aws_secret_access_key": "file:store.secret"}},
            "telemetry": {
                "table_path": f"{root}/bronze",
                "checkpoint": checkpoints["telemetry"],
                "trigger": "2 seconds",
            },
            "status": {"checkpoint": checkpoints["status"], "trigger": "2 seconds"},
            "silver": {
                "root": f"{root}/fleet",
                "checkpoint": checkpoints["silver"],
                "schemas": "schemas",
                "rules": None,
            },
            "actions": {"root": f"{root}/fleet", "poll_s": 0.5, "device_state_s": 5.0, "allow_unsigned": True},
            # Of a job in the driver. Until bronze is there, silver fails.
            "jobs": {"retries": 100, "retry_max_s": 5.0},
        }

    def start_jobs(self) -> None:
        self._job = self._submit("jobs", *JOBS, "--config", "pipelines.yaml", name="jobs")

    def explain(self, program: Path) -> str:
        """Runs a program on the cluster as the jobs run, and returns what it printed."""
        shutil.copy(program, self.cluster.packed)
        process = self._submit("pipelines.yaml", name="explain", program=program.name)
        until(lambda: process.poll() is not None, "end of the program", lambda: self.cluster.said("explain"))
        assert process.returncode == 0, self.cluster.said("explain")[-4_000:]
        return self.cluster.said("explain")

    def _submit(self, *arguments: str, name: str, program: str = JOB) -> subprocess.Popen[bytes]:
        of_history = f"spark.hadoop.fs.s3a.bucket.{HISTORY}"
        conf = {
            "spark.executor.memory": "1g",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"s3a://{HISTORY}/",
            # As text, for the search.
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            f"{of_history}.endpoint": self.s3.endpoint,
            f"{of_history}.endpoint.region": "us-east-1",
            f"{of_history}.path.style.access": "true",
            f"{of_history}.aws.credentials.provider": "org.apache.hadoop.fs.s3a.auth.ProfileAWSCredentialsProvider",
            "spark.hadoop.fs.s3a.auth.profile.file": f"/opt/job/{_PROFILE}",
        }
        more = ["--files", ",".join(SHIPPED)]
        more += [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        return self.cluster.submit(*arguments, more=more, name=name, program=program)

    def keep(self) -> None:
        """Starts the jobs again if their driver has ended by itself."""
        assert self._job is not None, "the jobs have not been started"
        if self._job.poll() is not None:
            self.restarts.append("\n".join(self.cluster.said("jobs").strip().splitlines()[-3:]))
            self.start_jobs()

    def stop_jobs(self) -> None:
        """SIGTERM to the driver's Python, as a supervisor sends it."""
        assert self._job is not None, "the jobs have not been started"
        pids = [pid for pid in self.cluster.node("driver").pids() if _is_program(pid)]
        assert len(pids) == 1, f"{len(pids)} processes run the jobs"
        os.kill(pids[0], signal.SIGTERM)
        assert self._job.wait(_END_S) == 0, self.cluster.said("jobs")[-4_000:]

    # -- the operator ------------------------------------------------------------------------------------------------

    def describe_devices(self) -> None:
        """Creates the tables of actions, with every device in the inventory."""
        file = self.folder / "devices.csv"
        rows = [f"{id_},{site.name}\n" for site in self.sites for id_ in site.ids]
        file.write_text("device_id,label.site\n" + "".join(rows))
        self._headwater("devices", "import", str(file), "--create")

    def order(self, action_id: str, *words: str, rate: int) -> None:
        """An action for every device, for `rate` of them a minute: a command, unless `words` say otherwise."""
        where = " or ".join(f"site = {site.name}" for site in self.sites)
        given = ["--id", action_id, "--rate", str(rate), "--where", where]
        self._headwater("actions", "create", *(words or ("echo",)), *given)

    def order_firmware(self, action_id: str, version: str, *, rate: int) -> None:
        """Stores firmware at every broker, offers it, and orders it for every device."""
        image, first = self.folder / f"{version}.bin", self.sites[0]
        image.write_bytes(os.urandom(_FIRMWARE_BYTES))
        self._headwater("artifacts", "push", str(image), "firmware", version, "--all", "--config", "pipelines.yaml")
        access = ["--user", PIPELINE, "--password-from", "file:pipeline.password", "--tls-ca", "ca.pem"]
        self._headwater("actions", "offer", "firmware", version, "--server", first.files.server(), *access)
        self.order(action_id, "install", "--artifact", f"firmware:{version}", rate=rate)

    def has_ended(self, action_id: str) -> bool:
        row = FleetDesk(str(self.tables)).action(action_id)
        return row is not None and row["phase"] == "ENDED"

    def _headwater(self, *words: str) -> None:
        of_tables = [] if words[0] == "artifacts" else ["--root", f"s3://{BUCKET}/fleet", "--by", "ann"]
        self._on_yard(headwater_on(self.yard, *words, *of_tables))

    def logged(self, program: Path) -> Path:
        """Copies the telemetry of every broker into a file, without Spark and without the tables."""
        found = self.folder / "logged.parquet"
        self._on_yard([*within(self.yard), sys.executable, str(program), "pipelines.yaml", str(found)])
        return found

    def _on_yard(self, command: list[str]) -> None:
        """In the folder of the settings, with the secret of the store in the environment, as people give it."""
        environment = clean_environment(self.s3.environment)
        done = subprocess.run(
            command, cwd=self.cluster.packed, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def running_fleet(cluster: Cluster, folder: Path, *, devices: int) -> Iterator[Fleet]:
    """Two brokers, which run, with half of the devices each, which do not. The files are those of `headwater init` and
    of `headwater init --beside`."""
    folder.mkdir()
    yard = cluster.network.add("yard", {})
    sites: list[Site] = []
    for name in ("north", "south"):
        (folder / f"etc-{name}").mkdir()
        node = cluster.add_broker_machine(name, {"etc": folder / f"etc-{name}"})
        files = SecuredFolder(
            folder / "secured" / name,
            hosts=(node.address, *HOSTS),
            bind=node.address,
            beside=sites[0].files.root if sites else None,
        )
        sites.append(Site(name, node, yard, files, devices // 2, cluster.logs))
    users = tuple(id_ for site in sites for id_ in (*site.ids, site.probe))
    sites[0].files = replace(sites[0].files, devices=users)
    for site in sites:
        site.files.write()
        site.install()
        site.start(cluster)
    try:
        yield Fleet(cluster, folder, sites, yard)
    finally:
        for site in sites:
            site.kill_devices()


def _is_program(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return not words[0].endswith(b"java") and any(word.endswith(JOB.encode()) for word in words)
