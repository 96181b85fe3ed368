"""`headwater artifacts root|policy|sign|publish-root|roots`: who may sign what devices install and do (docs/adr/0021).

Key lists and policies are JSON files, which several people sign one after the other on machines of their own. Only
`publish-root` and `roots` contact a broker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_edge.draft import open_draft
from broker_edge.errors import ConfigError, HeadwaterError
from broker_edge.escape import moment
from broker_edge.regular_file import open_regular
from headwater_cli._options import DEFAULT_SERVER, JsonOption, ServerOption, TimeoutOption, connect
from headwater_cli._output import put_fields, put_json, put_rows, say

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from broker_edge.client import Client
    from broker_edge.policy import Policy, Root

_DAY_US = 86_400 * 1_000_000
_FILE_BYTES_MAX = 1 << 20

DaysOption = Annotated[int, typer.Option("--days", min=1, max=36_500, help="For how long it counts.")]


def _keys(of: str) -> Any:
    text = f"Public key of the role {of}; repeatable."
    return typer.Option(f"--{of}", metavar="FILE.pub", show_default=False, help=text)


def _threshold(of: str) -> Any:
    text = f"How many keys of the role {of} must sign (default: all of them)."
    return typer.Option(f"--{of}-threshold", min=1, show_default=False, help=text)


def root(
    out: Annotated[Path, typer.Argument(metavar="OUT.json", help="The key list to write; it is then signed.")],
    root_keys: Annotated[list[Path] | None, _keys("root")] = None,
    root_threshold: Annotated[int | None, _threshold("root")] = None,
    targets_keys: Annotated[list[Path] | None, _keys("targets")] = None,
    targets_threshold: Annotated[int | None, _threshold("targets")] = None,
    director_keys: Annotated[list[Path] | None, _keys("director")] = None,
    after: Annotated[
        Path | None, typer.Option(metavar="OLD.json", help="The version before; roles that are not given stay.")
    ] = None,
    days: DaysOption = 365,
) -> None:
    """Write a key list: version 1, or the version after OLD.json. Root keys of both versions must sign it."""
    from broker_edge.policy import DIRECTOR, ROOT, TARGETS, Root

    old = None if after is None else _root(after)
    given = {
        ROOT: (root_keys, root_threshold),
        TARGETS: (targets_keys, targets_threshold),
        DIRECTOR: (director_keys, None),
    }
    roles = {}
    for name, (paths, threshold) in given.items():
        if (role := _role(name, paths, threshold, old)) is not None:
            roles[name] = role
    missing = next((name for name in (ROOT, TARGETS) if name not in roles), None)
    if missing is not None:
        raise typer.BadParameter(f"give --{missing} FILE.pub, or --after with the version before")
    now_us = _now_us()
    made = Root.make(
        roles, version=1 if old is None else old.version + 1, signed_us=now_us, expires_us=now_us + days * _DAY_US
    )
    _write_new(out, made.to_bytes())
    put_fields(f"version {made.version} of the key list: {out}; sign it with `headwater artifacts sign`")


def _role(
    name: str, paths: list[Path] | None, threshold: int | None, old: Root | None
) -> tuple[list[Ed25519PublicKey], int] | None:
    """Keys and threshold: those given, else those of the version before."""
    from broker_edge.artifacts.keys import load_public
    from broker_edge.policy import DIRECTOR

    before = None if old is None else old.role(name)
    keys = [load_public(path) for path in paths or ()]
    if not keys and old is not None and before is not None:
        keys = [old.keys[id_] for id_ in sorted(before.key_ids)]
        threshold = threshold or before.threshold
    if not keys:
        return None
    return keys, 1 if name == DIRECTOR else threshold or len(keys)


def policy(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    version: Annotated[str, typer.Argument(metavar="VERSION", show_default=False)],
    out: Annotated[Path, typer.Argument(metavar="OUT.json", help="The policy to write; it is then signed.")],
    product: Annotated[str, typer.Option(help="The product that it is for.", show_default=False)],
    hardware: Annotated[
        list[str], typer.Option(metavar="ID", show_default=False, help="A hardware that it is for; repeatable.")
    ],
    order: Annotated[str, typer.Option(help="The order of its versions: semver or pep440.")] = "semver",
    floor: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Devices that have confirmed it never go below this version again."),
    ] = None,
    days: DaysOption = 365,
    chunk_bytes: Annotated[int, typer.Option("--chunk-bytes", help="Size of a chunk.")] = 256 * 1024,
) -> None:
    """Write the policy of FILE as NAME VERSION: product, hardware, security floor, expiry."""
    from broker_edge.artifacts.upload import describe
    from broker_edge.policy import Policy, VersionOrder

    if order not in list(VersionOrder):
        raise typer.BadParameter(f"--order is {' or '.join(VersionOrder)}, not {order}")
    now_us = _now_us()
    made = Policy.make(
        describe(file, name, version, chunk_size=chunk_bytes),
        product=product,
        hardware=hardware,
        order=VersionOrder(order),
        floor=floor,
        signed_us=now_us,
        expires_us=now_us + days * _DAY_US,
    )
    _write_new(out, made.to_bytes())
    put_fields(f"policy of {name} {version}: {out}; sign it with `headwater artifacts sign`")


def sign(
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="A key list or a policy.", show_default=False)],
    key: Annotated[list[Path], typer.Option(metavar="FILE", show_default=False, help="Private key; repeatable.")],
    after: Annotated[
        Path | None, typer.Option(metavar="OLD.json", help="The key list before, whose root keys sign too.")
    ] = None,
) -> None:
    """Add signatures to a key list or a policy. Signing again with the same key changes nothing.

    A key list takes its own root keys and those of the version before; --after says which these are.
    """
    from broker_edge.artifacts import SigningKey
    from broker_edge.policy import Root

    signers = [SigningKey.load(path) for path in key]
    one = _root_or_policy(file)
    if isinstance(one, Root):
        old = None if after is None else _root(after)
        if old is not None and old.version != one.version - 1:
            what = f"--after {after} is version {old.version} of the key list"
            raise typer.BadParameter(f"{what}, and before version {one.version} comes {one.version - 1}")
        for path, signer in zip(key, signers, strict=True):
            _require_root_key(path, signer.key_id, one, old)
    elif after is not None:
        raise typer.BadParameter(f"--after is for key lists, and {file} is a policy: omit it")
    for signer in signers:
        one = one.and_signature(signer)
    _replace(file, one.to_bytes())
    ids = ", ".join(sorted(signature.key_id for signature in one.signed.signatures))
    put_fields(f"{file} is signed with {ids}")


def _require_root_key(path: Path, key_id: str, one: Root, old: Root | None) -> None:
    """Raises PolicyError for a key whose signature no device would count in this key list."""
    from broker_edge.policy import ROOT, PolicyError

    if any(root is not None and key_id in root.roles[ROOT].key_ids for root in (one, old)):
        return
    roles = sorted(name for name, role in one.roles.items() if key_id in role.key_ids)
    what = f"{path} (key {key_id}) is no root key of version {one.version} of the key list"
    if roles:
        raise PolicyError(f"{what} but one of {', '.join(roles)}: sign it with root keys")
    if one.version == 1:
        raise PolicyError(f"{what}, which has no version before it: sign it with root keys")
    if old is not None:
        raise PolicyError(f"{what}, nor of version {old.version}: sign it with root keys of these two")
    # It may be one of the version before, which is not here.
    say(f"{what}: it counts only if it is one of version {one.version - 1}; --after OLD.json checks that")


def publish_root(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE.json...", help="Key lists, oldest first.", show_default=False)
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="In place of a chain at the broker that is damaged or foreign.")
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Add key lists to those of a broker, from where devices take them. Do it at every broker."""
    from broker_edge.policy import publish_roots

    roots = [_root(file) for file in files]
    newest = roots[-1]
    how = "make the next version, or publish it together with the versions after it"
    _must_count(f"version {newest.version} of the key list", newest.expires_us, how)
    with connect(server, timeout) as client:
        is_new = publish_roots(client, roots, replace=replace)
    if json:
        put_json({"server": server, "version": roots[-1].version, "published": is_new})
    else:
        put_fields(f"{server} has version {roots[-1].version} of the key list{'' if is_new else ' already'}")


def roots(server: ServerOption = DEFAULT_SERVER, json: JsonOption = False, timeout: TimeoutOption = 30.0) -> None:
    """List the key lists of a broker."""
    from broker_edge.policy import published_roots

    with connect(server, timeout) as client:
        found = published_roots(client)
    if json:
        put_json({"roots": [one.signed.to_json() for one in found]})
        return
    rows = [(one.version, moment(one.expires_us), _roles(one)) for one in found]
    put_rows(("version", "expires", "roles"), rows, empty=f"{server} has no key lists")


def _roles(one: Root) -> str:
    return ", ".join(f"{name} {role.threshold} of {len(role.key_ids)}" for name, role in sorted(one.roles.items()))


# -- for push and verify -----------------------------------------------------------------------------------------------


def load_policy(path: Path) -> Policy:
    """Raises ConfigError, or PolicyError for another file."""
    from broker_edge.policy import Policy

    return Policy.parse(_read(path))


def check_policy(client: Client, given: Policy) -> bool:
    """Raises PolicyError if devices of this broker would refuse its signatures, or if it has expired. False: the broker
    has no key list."""
    from broker_edge.policy import published_roots

    check_expiry(given)
    found = published_roots(client)
    if found:
        given.check_signed(found[-1])
    return bool(found)


def check_expiry(given: Policy) -> None:
    """Raises PolicyError if the policy has expired by the clock of this machine."""
    artifact = given.artifact
    how = "make and sign a new one for the same file"
    _must_count(f"the policy of {artifact.name} {artifact.version}", given.expires_us, how)


def _must_count(what: str, expires_us: int, how: str) -> None:
    from broker_edge.policy import PolicyError

    if _now_us() >= expires_us:
        when = moment(expires_us, "minutes")
        raise PolicyError(f"{what} expired at {when} by the clock of this machine, so devices refuse it: {how}")


def load_root(path: Path) -> Root:
    """A key list that its own root keys have signed. Raises ConfigError or PolicyError."""
    found = _root(path)
    found.check_signed()
    return found


# -- files -------------------------------------------------------------------------------------------------------------


def _root(path: Path) -> Root:
    from broker_edge.policy import PolicyError, Root

    try:
        return Root.parse(_read(path))
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from error


def _root_or_policy(path: Path) -> Root | Policy:
    from broker_edge.policy import Policy, PolicyError, Root

    payload = _read(path)
    kinds: tuple[Callable[[bytes], Root | Policy], ...] = (Root.parse, Policy.parse)
    errors: list[HeadwaterError] = []
    for read in kinds:
        try:
            return read(payload)
        except PolicyError as error:
            errors.append(error)
    raise PolicyError(f"{path} is neither a key list nor a policy: {errors[-1]}")


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _write_new(path: Path, content: bytes) -> None:
    """Never overwrites: the signatures in a file cost several people their time."""
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError as error:
        raise ConfigError(f"{path} already exists: choose another name, or move it away") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.new")
    try:
        with open_draft(draft) as file:
            file.write(content)
        os.replace(draft, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _now_us() -> int:
    return time.time_ns() // 1_000


def add_to(app: typer.Typer) -> None:
    for name, command in (
        ("policy", policy),
        ("root", root),
        ("sign", sign),
        ("publish-root", publish_root),
        ("roots", roots),
    ):
        app.command(name)(command)
