"""The files of a secured broker in one folder: settings, users, rights, certificates, and settings of the jobs.

`write` adds what is missing and overwrites nothing. It starts no broker and opens no connection. A folder `beside`
another one is for a further broker of the same fleet: it has the users, rights and authority of the other one, and no
secret but the key of its own certificate.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker_edge.authority import KeyPair, new_authority, new_certificate
from broker_edge.default_files import FOLDER
from broker_edge.errors import ConfigError
from broker_edge.key_files import is_made, new_file, new_pair, opened
from broker_edge.own_python import own_environment, own_python
from broker_edge.regular_file import read_regular

OPERATOR, PIPELINE = "operator", "pipeline"
PORTS: Mapping[str, int] = {"mqtt": 1883, "mqtts": 8883, "flight": 8815, "admin": 8080}
HOSTS = ("localhost", "127.0.0.1", "::1")
_GENERATE_S = 120.0
_COMMON_NAME_MAX = 64
"""RFC 5280, upper bound of a common name."""

ACL = f"""\
# Who may do what: docs/security.md explains every line. After a change, send SIGHUP to the broker.

# People who run the broker: groups, backups, reloads, clients.
user {OPERATOR}
operator
topic readwrite #
topic replay #
topic read $SYS/#

# The jobs on Spark: read everything by offset, publish commands and firmware.
user {PIPELINE}
topic replay #
topic replay $receipts
topic replay $gaps
topic write devices/+/actions
topic write artifacts/#
# Nobody else begins the consumer groups of the jobs.
group telemetry
group status

# Each device, which is the user of its name: writes its own topics, reads its commands, key lists and firmware (chunks
# from an offset of its choice, to go on after an interruption).
pattern write devices/%c/telemetry/#
pattern write devices/%c/status
pattern read devices/%c/actions
pattern read artifacts/root
pattern read artifacts/+/+/manifest
pattern replay artifacts/+/+/chunks
"""


@dataclass(frozen=True, slots=True)
class SecuredFolder:
    """`root` is absolute. `hosts` are the names and addresses in the broker's certificate; jobs call the first one.
    MQTT over TLS, Flight and admin listen on `bind`; MQTT in clear on 127.0.0.1 only. With `beside`, the folder of a
    first broker, `devices` counts for nothing.

    With `client_certificates` a device authenticates itself over TLS by a certificate of its name, signed by an
    authority for devices, and has no password. A folder that has this authority keeps to it."""

    root: Path
    devices: tuple[str, ...] = ("device-0001",)
    hosts: tuple[str, ...] = HOSTS
    bind: str = "127.0.0.1"
    ports: Mapping[str, int] = field(default_factory=lambda: PORTS)
    beside: Path | None = None
    client_certificates: bool = False

    @property
    def broker(self) -> Path:
        return self.root / "broker.yaml"

    @property
    def pipelines(self) -> Path:
        return self.root / "pipelines.yaml"

    @property
    def ca(self) -> Path:
        return self.root / "tls" / "ca.pem"

    @property
    def devices_ca(self) -> Path:
        """The authority of the devices' certificates; it exists if devices have certificates."""
        return self.root / "tls" / "devices-ca.pem"

    def certificate(self, device: str) -> tuple[Path, Path]:
        """The certificate of a device and its key."""
        return self.root / "secrets" / f"{device}.pem", self.root / "secrets" / f"{device}.key"

    @property
    def device_passwords(self) -> Path:
        """Lines of NAME:PASSWORD, for `headwater devices simulate --passwords`."""
        return self.root / "secrets" / "devices"

    def password(self, user: str) -> Path:
        return self.root / "secrets" / f"{user}.password"

    def server(self) -> str:
        """The Flight address."""
        return f"grpc+tls://{_in_address(self.hosts[0])}:{self.ports['flight']}"

    def mqtts(self) -> str:
        return f"mqtts://{_in_address(self.hosts[0])}:{self.ports['mqtts']}"

    def write(self) -> list[Path]:
        """Writes the files that do not exist, and returns them. Raises ConfigError."""
        for name in self.devices:
            if not name or set(name) & set("/+#:\0\n") or name in (OPERATOR, PIPELINE, "devices"):
                raise ConfigError(f"`{name}` cannot be the name of a device: it is a user and a level of topics")
            if any(mark in name for mark in "*?[]{}"):
                how = "for many, give names on stdin to `headwater users generate`"
                raise ConfigError(f"`{name}` is no pattern: a device has a name and a user of its own; {how}")
        if self.client_certificates and self.broker.exists() and not self.devices_ca.exists():
            raise ConfigError(f"{self.broker} lets devices in by password: name a new folder for client certificates")
        for name in self.devices if self.client_certificates or self.devices_ca.exists() else ():
            if len(name) > _COMMON_NAME_MAX or not name.isascii():
                raise ConfigError(f"`{name}` cannot be the name in a certificate: {_COMMON_NAME_MAX} ASCII characters")
        try:
            return self._write()
        except OSError as error:
            raise ConfigError(f"cannot write {error.filename or self.root} ({error.strerror})") from error

    def _write(self) -> list[Path]:
        if self.beside is not None:
            return self._write_beside(self.beside)
        for folder, mode in ((self.root, 0o755), (self.root / "tls", 0o755), (self.root / "secrets", 0o700)):
            folder.mkdir(parents=True, exist_ok=True, mode=mode)
        made = [*self._schemas(), *self._certificates(), *self._device_certificates(), *self._users()]
        for path, text in (
            (self.root / "acl", ACL),
            (self.broker, self._broker_yaml()),
            (self.pipelines, self._pipelines_yaml()),
        ):
            if not path.exists():
                new_file(path, text.encode(), mode=0o644)
                made.append(path)
        return made

    def _schemas(self) -> list[Path]:
        """Silver needs one schema at least. Whoever has removed ours does not get it again."""
        folder = self.root / "schemas"
        if folder.exists():
            return []
        folder.mkdir()
        schema = folder / "telemetry.yaml"
        new_file(schema, (FOLDER / "schemas/telemetry.yaml").read_bytes(), mode=0o644)
        return [schema]

    def _write_beside(self, first: Path) -> list[Path]:
        shared = [("users", 0o600), ("acl", 0o644), ("tls/ca.pem", 0o644)]
        if (first / "tls/devices-ca.pem").exists():
            shared.append(("tls/devices-ca.pem", 0o644))
        for name in (*(name for name, _ in shared), "tls/ca.key"):
            if not (first / name).is_file():
                raise ConfigError(
                    f"{first} has no {name}: name the folder that `headwater init` wrote for a first broker"
                )
        own, other = self.root / "tls/ca.pem", first / "tls/ca.pem"
        if own.exists() and read_regular(own) != read_regular(other):
            raise ConfigError(f"{self.root} has another authority than {first}: name a new folder")
        (self.root / "tls").mkdir(parents=True, exist_ok=True, mode=0o755)
        made = []
        for name, mode in shared:
            if not (self.root / name).exists():
                new_file(self.root / name, read_regular(first / name), mode=mode)
                made.append(self.root / name)
        made += self._certificates(ca_key=first / "tls/ca.key")
        if not self.broker.exists():
            new_file(self.broker, self._broker_yaml().encode(), mode=0o644)
            made.append(self.broker)
        return made

    def _certificates(self, *, ca_key: Path | None = None) -> list[Path]:
        tls = self.root / "tls"
        ca_key, cert, key = ca_key or tls / "ca.key", tls / "broker.pem", tls / "broker.key"
        made: list[Path] = []
        if not self.ca.exists():
            if ca_key.exists() or cert.exists() or key.exists():
                raise ConfigError(f"{self.ca} is missing, and other files of it exist: put it back, or remove {tls}")
            authority = new_authority(f"headwater {self.hosts[0]}")
            made += new_pair(authority, self.ca, ca_key)
        if is_made(cert, key):
            return made
        authority = _authority(self.ca, ca_key, cert, key)
        return made + new_pair(new_certificate(authority, self.hosts[0], hosts=self.hosts), cert, key)

    def _device_certificates(self) -> list[Path]:
        if not self.client_certificates and not self.devices_ca.exists():
            return []
        ca_key = self.devices_ca.with_suffix(".key")
        made: list[Path] = []
        if not self.devices_ca.exists():
            made += new_pair(new_authority(f"headwater devices {self.hosts[0]}"), self.devices_ca, ca_key)
        for name in self.devices:
            cert, key = self.certificate(name)
            if not is_made(cert, key):
                made += new_pair(new_certificate(_authority(self.devices_ca, ca_key, cert, key), name), cert, key)
        return made

    def _users(self) -> list[Path]:
        with_password = (OPERATOR, PIPELINE, *(() if self.devices_ca.exists() else self.devices))
        missing = [name for name in with_password if not self.password(name).exists()]
        if not missing:
            return []
        users = self.root / "users"
        made = [] if users.exists() else [users]
        found = generate_passwords(users, missing)
        for name in missing:
            new_file(self.password(name), f"{found[name]}\n".encode(), mode=0o600)
            made.append(self.password(name))
        lines = "".join(f"{name}:{found[name]}\n" for name in missing if name not in (OPERATOR, PIPELINE))
        if lines:
            made += [] if self.device_passwords.exists() else [self.device_passwords]
            with opened(self.device_passwords, os.O_APPEND, 0o600) as file:
                file.write(lines.encode())
        return made

    def _broker_yaml(self) -> str:
        tls = f"{{cert: {_quoted(self.root / 'tls/broker.pem')}, key: {_quoted(self.root / 'tls/broker.key')}}}"
        parts = [
            "# A broker with users and TLS. conf/broker.yaml of the project explains every key.\n",
            f"data_dir: {_quoted(self.root / 'data/broker')}\n",
            "listeners:\n",
            f'  # In clear, for programs on this machine.\n  mqtt: {{bind: "127.0.0.1:{self.ports["mqtt"]}"}}\n',
        ]
        has_certificates = self.devices_ca.exists()
        mutual = f"{tls[:-1]}, client_ca: {_quoted(self.devices_ca)}, client_auth: required}}"
        for name in ("mqtts", "flight", "admin"):
            chosen = mutual if has_certificates and name == "mqtts" else tls
            parts.append(f'  {name}:\n    bind: "{_in_address(self.bind)}:{self.ports[name]}"\n    tls: {chosen}\n')
        named = [host for host in self.hosts if host not in HOSTS]
        if named:
            parts.append(f"admin:\n  hosts: {json.dumps(named)}\n")
        parts.append(
            f"auth:\n  password_file: {_quoted(self.root / 'users')}\n  acl_file: {_quoted(self.root / 'acl')}\n"
        )
        if has_certificates:
            parts.append(
                "  # A device is the user of the name in its certificate, and needs no password.\n"
                "  certificate: {user: common_name, bind_client_id: true}\n"
            )
        return "".join(parts)

    def _pipelines_yaml(self) -> str:
        data = self.root / "data"
        checkpoints = {name: _quoted(data / "checkpoints" / name) for name in ("telemetry", "status", "silver")}
        tables = _quoted(data / "tables")
        return (
            "# Jobs on the broker of this folder. conf/pipelines.yaml of the project explains every key.\n"
            f'brokers:\n  - {{server: "{self.server()}", name: {_quoted(self.hosts[0])}}}\n'
            f"access:\n  user: {PIPELINE}\n  password: {_quoted('file:' + str(self.password(PIPELINE)))}\n"
            f"  tls: {{ca: {_quoted('file:' + str(self.ca))}}}\n"
            f"telemetry: {{table_path: {_quoted(data / 'bronze')}, checkpoint: {checkpoints['telemetry']}}}\n"
            f"status: {{checkpoint: {checkpoints['status']}}}\n"
            f"actions: {{root: {tables}}}\n"
            f"silver: {{root: {tables}, checkpoint: {checkpoints['silver']}, "
            f"schemas: {_quoted(self.root / 'schemas')}, rules: null}}\n"
        )


def generate_passwords(users: Path, names: Sequence[str]) -> dict[str, str]:
    """Adds users with random passwords to a password file, and returns the passwords. The broker's own tool does it, in
    a process of its own because it prints them. Raises ConfigError."""
    program = (
        "import sys; from broker_edge.native import native; sys.exit(native().run(['users', 'generate', sys.argv[1]]))"
    )
    done = subprocess.run(
        own_python("-c", program, str(users)),
        input="".join(f"{name}\n" for name in names),
        capture_output=True,
        text=True,
        timeout=_GENERATE_S,
        env=own_environment(),
        check=False,
    )
    found = dict(_pairs(done.stdout.splitlines()))
    if done.returncode or set(found) != set(names):
        raise ConfigError(f"cannot write {users}: {done.stderr.strip() or 'not all users were added'}")
    users.chmod(0o600)
    return found


def _pairs(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        name, _, password = line.partition(":")
        yield name, password


def _authority(ca: Path, ca_key: Path, cert: Path, key: Path) -> KeyPair:
    """What signs `cert`."""
    if not ca_key.exists():
        raise ConfigError(f"a certificate needs {ca_key}: put it back to sign one, or place {cert} and {key} there")
    return KeyPair(read_regular(ca), read_regular(ca_key))


def _quoted(value: object) -> str:
    """A string of YAML: JSON's strings are some of them."""
    return json.dumps(str(value))


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
