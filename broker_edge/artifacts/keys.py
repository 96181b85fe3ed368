"""Ed25519 keys for signing firmware, and the public keys that a device or an operator trusts.

Private keys are PKCS 8 PEM files with access for their owner only; public keys are PEM files. Which artifact is signed
is decided elsewhere.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from broker_edge.artifacts.manifest import Artifact, ArtifactError, Signature
from broker_edge.errors import ConfigError
from broker_edge.regular_file import open_regular

# A PEM file of an ed25519 key has about 120 bytes.
_PEM_BYTES_MAX = 16 * 1024


def key_id(key: Ed25519PublicKey) -> str:
    """The id of a public key: the beginning of the sha256 of its 32 bytes."""
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]


class SigningKey:
    """A private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key()
        self.key_id = key_id(self.public)

    @classmethod
    def generate(cls) -> SigningKey:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Raises ConfigError if the file is missing, unreadable or not such a key."""
        return cls.of_pem(_read(path), where=str(path))

    @classmethod
    def of_pem(cls, text: bytes, *, where: str) -> SigningKey:
        """Raises ConfigError, which says `where`, if the text is not such a key."""
        try:
            key = load_pem_private_key(text, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ConfigError(f"{where} is not a private key in PEM without a password: {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"{where} is not an ed25519 private key: make one with `headwater artifacts keygen`")
        return cls(key)

    def save(self, path: Path) -> Path:
        """Writes the private key, readable by its owner only, and the public key beside it. Never overwrites a file."""
        public = path.with_name(f"{path.name}.pub")
        private_pem = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        public_pem = self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        for target, text, mode in ((path, private_pem, 0o600), (public, public_pem, 0o644)):
            try:
                descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            except FileExistsError as error:
                raise ConfigError(f"{target} already exists: choose another name, or move it away") from error
            except OSError as error:
                raise ConfigError(f"cannot write {target}: {error.strerror}") from error
            with os.fdopen(descriptor, "wb") as file:
                file.write(text)
        return public

    def sign(self, artifact: Artifact) -> Signature:
        return self.sign_bytes(artifact.signed_bytes())

    def sign_bytes(self, message: bytes) -> Signature:
        """The caller puts a prefix that names the kind of the message before it."""
        return Signature(self.key_id, self._key.sign(message))

    def trust(self) -> Trust:
        """Trust in this key only."""
        return Trust((self._key.public_key(),))


class Trust:
    """The trusted public keys. Without any, no artifact is trusted."""

    def __init__(self, keys: Iterable[Ed25519PublicKey]) -> None:
        self._keys = {key_id(key): key for key in keys}

    @classmethod
    def load(cls, paths: Iterable[Path]) -> Trust:
        """Reads PEM files; raises ConfigError for one that is not valid."""
        return cls([load_public(path) for path in paths])

    def __bool__(self) -> bool:
        return bool(self._keys)

    def check(self, artifact: Artifact, signature: Signature | None) -> None:
        """Raises ArtifactError unless a trusted key has signed the artifact."""
        what = f"{artifact.name} {artifact.version}"
        if signature is None:
            raise ArtifactError(f"{what} is not signed")
        key = self._keys.get(signature.key_id)
        if key is None:
            known = ", ".join(sorted(self._keys)) or "none"
            raise ArtifactError(
                f"{what} is signed with key {signature.key_id}, which is not trusted (trusted: {known})"
            )
        try:
            key.verify(signature.value, artifact.signed_bytes())
        except InvalidSignature as error:
            raise ArtifactError(f"the signature of {what} with key {signature.key_id} is wrong") from error


def load_public(path: Path) -> Ed25519PublicKey:
    """Reads a PEM file; raises ConfigError if it is not an ed25519 public key."""
    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a public key in PEM: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} is a public key, but not an ed25519 key")
    return key


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(_PEM_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
