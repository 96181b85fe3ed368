"""`headwater artifacts`: firmware and other files in the log of a broker (docs/artifacts.md).

Exit codes: 0 done, 1 artifact or manifest invalid, 2 usage, 3 cannot connect, 4 refused (other bytes, no such
artifact), 5 a key cannot be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from broker_edge.errors import HeadwaterError
from broker_edge.escape import moment
from headwater_cli import _offers
from headwater_cli._author import ByOption, author
from headwater_cli._options import (
    DEFAULT_SERVER,
    JsonOption,
    ServerOption,
    ServersOption,
    TimeoutOption,
    connect,
    retries_of,
)
from headwater_cli._order import labels_of
from headwater_cli._output import put_fields, put_json, put_rows, say
from headwater_cli._tables import Tables, brokers_of, require_tables
from headwater_cli.signing import add_to, check_expiry, check_policy, load_policy, load_root

if TYPE_CHECKING:
    from actions.fleet_desk import FleetDesk
    from broker_edge.artifacts import Manifest, Pushed

app = typer.Typer(help="Artifacts: push, list, verify, withdraw and remove firmware in the log.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
VersionArgument = Annotated[str, typer.Argument(metavar="VERSION", show_default=False)]


@app.command()
def push(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, show_default=False)],
    name: NameArgument,
    version: VersionArgument,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Private key to sign it with; see `keygen`.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE.json", help="Its signed policy; see `policy`.")
    ] = None,
    chunk_bytes: Annotated[int, typer.Option("--chunk-bytes", help="Size of a chunk.")] = 256 * 1024,
    server: ServersOption = None,
    every: Annotated[bool, typer.Option("--all", help="Store it at every broker of the settings.")] = False,
    offer: Annotated[
        bool, typer.Option("--offer", help="Then allow devices to install it: a row in the table artifacts.")
    ] = False,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="--offer: only devices with this label; repeatable.")
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="--offer: only this device; repeatable.")
    ] = None,
    *,
    tables: Tables,
    by: ByOption = None,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Store FILE as NAME VERSION. Repeating it is harmless: existing chunks are not stored again.

    With --offer the table artifacts gets its row once every broker has it; a row that is there already stays as it is.
    With several brokers, each is tried, and the exit code is that of the first one that failed.
    """
    from broker_edge.artifacts import SigningKey
    from broker_edge.artifacts import push as push_file

    if (label or device) and not offer:
        raise typer.BadParameter("--label and --device go with --offer")
    if tables.settings is not None and not (every or offer):
        raise typer.BadParameter("--config goes with --all or --offer")
    signer = None if key is None else SigningKey.load(key)
    signed = None if policy is None else load_policy(policy)
    brokers = brokers_of(server, every=every, settings=tables.settings)
    desk = _desk(tables, by) if offer else None
    if desk is not None:
        desk.require_not_withdrawn(name, version)  # Before its bytes are at a broker again.
    failed: list[HeadwaterError] = []
    rows: list[dict[str, Any]] = []
    is_signed = is_checked = True
    manifest: Manifest | None = None
    for broker in brokers:
        who = {"server": broker.server, "name": broker.name} if len(brokers) > 1 else {}
        where = f"{broker.name or broker.server}: " if len(brokers) > 1 else ""
        try:
            with (
                broker.client(timeout_s=timeout, retries=retries_of(broker.server)) as client,
                _bar("pushing") as progress,
            ):
                if signed is not None:
                    is_checked = check_policy(client, signed) and is_checked
                done = push_file(
                    client,
                    file,
                    name,
                    version,
                    key=signer,
                    chunk_size=chunk_bytes if signed is None else signed.artifact.chunk_size,
                    progress=progress,
                    policy=None if signed is None else signed.in_manifest(),
                    expected=None if signed is None else signed.artifact,
                )
        except HeadwaterError as error:
            failed.append(error)
            rows.append({"broker": who, "error": str(error)})
            if len(brokers) > 1 and not json:
                put_fields(f"{where}failed: {error}")
            continue
        manifest = done.manifest
        row = {**_row(done.manifest), "stored": done.stored, "found": done.found, "existed": done.existed}
        rows.append({"broker": who, **row} if who else row)
        is_signed = is_signed and (done.manifest.signature is not None or signed is not None)
        if not json:
            put_fields(where + _sentence(name, version, done))
    if json and (len(brokers) > 1 or not failed):
        put_json({"brokers": rows} if len(brokers) > 1 else rows[0])
    if not is_signed and not json:
        say("it is not signed: devices refuse it unless they allow unsigned firmware (sign it with --key FILE)")
    if not is_checked and not json:
        say("the broker has no key list, so the signatures of the policy were not checked (see `publish-root`)")
    if failed:
        raise failed[0]
    if desk is not None and manifest is not None:
        _offer(desk, manifest, label, device)


def _desk(tables: Tables, by: str | None) -> FleetDesk:
    require_tables()
    from actions.fleet_desk import FleetDesk

    return FleetDesk(tables.root, by=author(by, None).name, access=tables.access, tenant=tables.tenant)


def _offer(desk: FleetDesk, manifest: Manifest, label: list[str] | None, device: list[str] | None) -> None:
    """Adds the row, unless one with these bytes is there."""
    artifact = manifest.artifact
    what = f"{artifact.name} {artifact.version}"
    if desk.has_offered(artifact.name, artifact.version, artifact.sha256):
        say(f"the table artifacts has {what} already, with the devices that it had")
        return
    desk.offer(loads(manifest.to_bytes()), labels=labels_of(label) if label else None, device_ids=device or None)
    say(f"devices may install {what} from now on")


def _sentence(name: str, version: str, done: Pushed) -> str:
    place = done.manifest.place
    found = f", {done.found} existed" if done.found else ""
    how = "already existed" if done.existed else f"{done.stored} chunks stored{found}"
    return f"{name} {version}: {how}; {place.partition} from offset {place.offset_of(0)}"


@app.command("list")
def list_(server: ServerOption = DEFAULT_SERVER, json: JsonOption = False, timeout: TimeoutOption = 30.0) -> None:
    """List the artifacts of a broker."""
    from broker_edge.artifacts import ArtifactStore

    with connect(server, timeout) as client:
        found = ArtifactStore(client).list()
    if json:
        rows = [
            _row(one.manifest) if one.manifest else {"name": one.name, "version": one.version, "problem": one.problem}
            for one in found
        ]
        put_json({"artifacts": rows})
        return
    for one in found:
        if one.problem is not None:
            say(f"{one.name} {one.version} cannot be used: {one.problem}")
    names = ("name", "version", "size", "chunks", "sha256", "key_id", "pushed", "place")
    shown = [one.manifest for one in found if one.manifest is not None]
    put_rows(names, [_fields(manifest) for manifest in shown], empty=f"{server} has no artifacts that can be used")


@app.command()
def verify(
    name: NameArgument,
    version: VersionArgument,
    trust: Annotated[
        list[Path] | None, typer.Option("--trust", metavar="FILE", help="Trusted public key; repeatable.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="FILE.json", help="Key list by which its policy is checked.")
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Read an artifact back and check every digest; with --trust also its signature, with --root its policy."""
    from broker_edge.artifacts import ArtifactStore, Trust
    from broker_edge.policy import Policy

    trusted = Trust.load(trust) if trust else None
    keys = None if root is None else load_root(root)
    with connect(server, timeout) as client, _bar("verifying") as progress:
        checked = ArtifactStore(client).verify(name, version, trust=trusted, progress=progress)
    if keys is not None:
        policy = Policy.of(checked.manifest)
        policy.check_signed(keys)
        check_expiry(policy)
    if json:
        checks = {"signature_checked": checked.key_id is not None, "policy_checked": keys is not None}
        put_json({**_row(checked.manifest), "verified": True, **checks})
        return
    signed = f", signed with key {checked.key_id}" if checked.key_id else ""
    if keys is not None:
        signed += f", policy signed by the keys of version {keys.version}"
    signed = signed or ", signature not checked (use --trust FILE or --root FILE.json)"
    put_fields(f"{name} {version}: {len(checked.manifest.artifact.chunks)} chunks are correct{signed}")


@app.command()
def rm(
    name: NameArgument,
    version: VersionArgument,
    server: ServerOption = DEFAULT_SERVER,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Remove an artifact. Retention or `headwater log purge` removes its bytes."""
    from broker_edge.artifacts import ArtifactStore

    with connect(server, timeout) as client:
        ArtifactStore(client).remove(name, version)
    if json:
        put_json({"name": name, "version": version, "removed": True})
    else:
        put_fields(f"{name} {version} removed")


@app.command()
def keygen(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", show_default=False, help="File for a private key; FILE.pub gets its public key."
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Create a pair of ed25519 keys for each FILE: FILE signs artifacts, devices trust FILE.pub."""
    from broker_edge.artifacts import SigningKey

    for file in files:
        key = SigningKey.generate()
        public = key.save(file)
        if json:
            put_json({"key_id": key.key_id, "private": str(file), "public": str(public)})
        else:
            put_fields(f"key {key.key_id}: {file} signs artifacts, devices trust {public}")


def _row(manifest: Manifest) -> dict[str, Any]:
    artifact, place = manifest.artifact, manifest.place
    return {
        "name": artifact.name,
        "version": artifact.version,
        "size": artifact.size,
        "sha256": artifact.sha256,
        "chunk_size": artifact.chunk_size,
        "chunks": len(artifact.chunks),
        "key_id": None if manifest.signature is None else manifest.signature.key_id,
        "partition": place.partition,
        "first": place.offset_of(0),
        "pushed_us": manifest.pushed_us,
    }


def _fields(manifest: Manifest) -> tuple[object, ...]:
    row = _row(manifest)
    pushed = moment(manifest.pushed_us)
    place = f"{row['partition']}:{row['first']}"
    names = ("name", "version", "size", "chunks", "sha256", "key_id")
    return (*(row[name] for name in names), pushed, place)


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr if that is a terminal, otherwise nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def register(parent: typer.Typer) -> None:
    add_to(app)
    _offers.add_to(app)
    parent.add_typer(app, name="artifacts")
