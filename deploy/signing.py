"""Who vouches for a bundle: Ed25519 signatures over the whole file, and the keys a robot trusts.

A signature lies beside its bundle as ``BUNDLE.sig``: 64 bytes, as RFC 8032 defines them, over the
bytes of the file. Keys are PEM files, so that other tools read them too::

    openssl pkeyutl -verify -pubin -inkey fleet.pub -rawin -in policy.onnx -sigfile policy.onnx.sig

A robot on which trusted keys are configured runs nothing else. ``cryptography`` is imported where
it is used: a robot without it can run unsigned bundles, and refuses if it is to check signatures.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.onnx_file import BundleError, replace_file
from real.errors import FerryError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

#: Folder of trusted keys where no option names one.
TRUSTED_ENV = "FERRY_TRUSTED_KEYS"

#: Names of files.
SIGNATURE_SUFFIX, PUBLIC_SUFFIX = ".sig", ".pub"

#: Of a signature [bytes], and the most that a key file may have.
_SIGNATURE_BYTES, _KEY_BYTES = 64, 4096


def signature_file(bundle: str | Path) -> Path:
    """Where the signature of a bundle lies."""
    return Path(f"{bundle}{SIGNATURE_SUFFIX}")


# ------------------------------------------------------------------ keys


@dataclass(frozen=True)
class TrustedKeys:
    """Whose bundles a robot runs.

    Attributes:
        source: the folder.
        keys: by file name.
    """

    source: Path
    keys: Mapping[str, Ed25519PublicKey]

    @staticmethod
    def load(folder: str | Path) -> TrustedKeys:
        """Every ``*.pub`` file of a folder.

        Raises:
            FerryError: no such folder, none in it, or one that is no Ed25519 public key. A robot
                that was told to check must not go on without.
        """
        source = Path(folder)
        files = sorted(source.glob(f"*{PUBLIC_SUFFIX}")) if source.is_dir() else []
        if not files:
            what = "holds no *.pub file" if source.is_dir() else "is no folder"
            raise FerryError(
                f"trusted keys: {source} {what}; put the public keys there that "
                "`ferry keygen` makes"
            )
        return TrustedKeys(source, {file.name: _public_key(file) for file in files})

    def signer(self, data: bytes, signature: bytes) -> str | None:
        """The name of the key that signed these bytes, or None if none did."""
        from cryptography.exceptions import InvalidSignature

        for name, key in self.keys.items():
            with contextlib.suppress(InvalidSignature):
                key.verify(signature, data)
                return name
        return None


def configured_keys(folder: str | Path | None = None) -> TrustedKeys | None:
    """The keys of a folder, or of the one that :data:`TRUSTED_ENV` names; None if neither is given.

    Raises:
        FerryError: see :meth:`TrustedKeys.load`.
    """
    chosen = str(folder or os.environ.get(TRUSTED_ENV, ""))
    return TrustedKeys.load(chosen) if chosen else None


def make_keys(path: str | Path) -> tuple[Path, Path]:
    """Make a key pair: ``PATH``, readable by its owner alone, and ``PATH.pub``.

    Raises:
        FerryError: one of them exists already, or cannot be written.
    """
    _require_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    secret, open_ = Path(path), Path(f"{path}{PUBLIC_SUFFIX}")
    for file in (secret, open_):
        if file.exists():
            raise FerryError(f"{file} exists already; a key is never written over: name another")
    _write_new(secret, private, mode=0o600)
    _write_new(open_, public, mode=0o644)
    return secret, open_


def fingerprint(public_file: str | Path) -> str:
    """SHA-256 of a public key's 32 bytes (hex), to compare over another channel."""
    from cryptography.hazmat.primitives import serialization

    raw = _public_key(Path(public_file)).public_bytes(
        serialization.Encoding.Raw, serialization.PublicFormat.Raw
    )
    return hashlib.sha256(raw).hexdigest()


# ------------------------------------------------------------------ signatures


def write_signature(bundle: str | Path, data: bytes, key_file: str | Path) -> Path:
    """Sign the bytes of a bundle; the signature's file, which is written over.

    Args:
        bundle: where the bundle lies.
        data: its bytes, as they were verified.
        key_file: a private key of :func:`make_keys`.

    Raises:
        FerryError: the key cannot be read, or the signature not written.
    """
    signature = _private_key(Path(key_file)).sign(data)
    file = signature_file(bundle)
    replace_file(file, signature)
    return file


def require_signature(bundle: str | Path, data: bytes, trusted: TrustedKeys) -> str:
    """The name of the trusted key that signed a bundle.

    Args:
        bundle: where it lies, for the signature beside it and for messages.
        data: its bytes; those, and not the file's later ones, are what may run.
        trusted: the keys.

    Raises:
        BundleError: it is unsigned, altered, or signed with another key.
    """
    _require_cryptography()
    file, names = signature_file(bundle), ", ".join(trusted.keys)
    try:
        signature = _read(file, _SIGNATURE_BYTES)
    except FileNotFoundError as error:
        raise BundleError(
            f"{bundle}: it is not signed (there is no {file.name}), and this robot runs only what "
            f"was signed with one of {names} (in {trusted.source}); sign it with `ferry sign`"
        ) from error
    except OSError as error:
        raise BundleError(f"{file}: cannot be read: {error.strerror or error}") from error
    if len(signature) != _SIGNATURE_BYTES:
        raise BundleError(
            f"{file}: it is no signature: it has {len(signature)} bytes or more; expected "
            f"{_SIGNATURE_BYTES}; sign the bundle again with `ferry sign`"
        )
    signer = trusted.signer(data, signature)
    if signer is None:
        raise BundleError(
            f"{bundle}: its signature does not fit: the bundle was altered after it was signed, or "
            f"signed with a key that is none of {names} (in {trusted.source})"
        )
    return signer


# ------------------------------------------------------------------ files


def _read(file: Path, most: int) -> bytes:
    """A file that should have at most so many bytes; one more shows that it has more."""
    with file.open("rb") as stream:
        return stream.read(most + 1)


def _public_key(file: Path) -> Ed25519PublicKey:
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read(file, _KEY_BYTES))
    except OSError as error:
        raise FerryError(f"{file}: cannot be read: {error.strerror or error}") from error
    # The library has many ways to say that a file is no key.
    except Exception as error:
        raise FerryError(f"{file}: it is no public key in PEM form") from error
    if not isinstance(key, Ed25519PublicKey):
        raise FerryError(f"{file}: it is no Ed25519 key; make one with `ferry keygen`")
    return key


def _private_key(file: Path) -> Ed25519PrivateKey:
    _require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(file, _KEY_BYTES), password=None)
    except OSError as error:
        raise FerryError(f"{file}: cannot be read: {error.strerror or error}") from error
    # As above; the text of none of them must show what is in the file.
    except Exception as error:
        raise FerryError(
            f"{file}: it is no private key in PEM form without a password; `ferry keygen` makes "
            "one (the file without .pub)"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise FerryError(f"{file}: it is no Ed25519 key; make one with `ferry keygen`")
    return key


def _write_new(file: Path, data: bytes, *, mode: int) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Created with its mode: a key is at no moment readable by others.
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
    except OSError as error:
        raise FerryError(f"cannot write {file}: {error.strerror or error}") from error


def _require_cryptography() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise FerryError(
            "signatures need the package cryptography, which is not installed: "
            "pip install cryptography"
        )
