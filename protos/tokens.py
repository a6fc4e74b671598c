"""Bearer tokens: who a caller is. A service keeps only their hashes, and the name each stands for.

The file is YAML:

    tokens:
      - {sha256: 5e88.., tenant: team-a}

A token is 32 random bytes as text (`dlite token` draws one), so a plain hash of it cannot be searched.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from protos.errors import InvalidRequest

_SCHEME = "bearer "
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def draw_token() -> str:
    """A new token."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """sha256 of a token, in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token of a call's metadata; empty when there is none."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str) and value.lower().startswith(_SCHEME):
            return value[len(_SCHEME) :].strip()
    return ""


@dataclass(frozen=True)
class TokenTable:
    """Tenants by the hashes of their tokens."""

    tenants: Mapping[str, str] = field(repr=False)

    def tenant_of(self, token: str) -> str | None:
        """Whose token this is; None when it is nobody's."""
        return self.tenants.get(token_hash(token)) if token else None


def read_document(path: Path, field_name: str) -> dict[str, Any]:
    """A YAML file that holds a mapping.

    Raises:
        InvalidRequest: it cannot be read, or holds something else.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {type(error).__name__}", field=field_name) from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"{path} must be a mapping with 'tokens'", field=field_name)
    return document


def read_tokens(path: Path) -> TokenTable:
    """Reads a file of hashes.

    Raises:
        InvalidRequest: not such a file. A token that stands there in the clear is not repeated.
    """
    entries = read_document(path, "auth_tokens").get("tokens")
    if not isinstance(entries, list) or not entries:
        raise InvalidRequest(f"{path} has no list 'tokens': nobody could call", field="auth_tokens")
    tenants: dict[str, str] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"entry {number} of {path}"
        if not isinstance(entry, dict) or set(entry) != {"sha256", "tenant"}:
            raise InvalidRequest(
                f"{where} must have sha256 and tenant, and nothing else", field="auth_tokens"
            )
        digest, tenant = str(entry["sha256"]).lower(), str(entry["tenant"])
        if not _SHA256.fullmatch(digest):
            raise InvalidRequest(f"{where}: sha256 must be 64 hex digits", field="auth_tokens")
        if not _TENANT.fullmatch(tenant):
            raise InvalidRequest(
                f"{where}: a tenant's name has 1 to 64 of a-z, 0-9, '.', '_' and '-'", field="auth_tokens"
            )
        if digest in tenants:
            raise InvalidRequest(f"{where}: this token is there twice", field="auth_tokens")
        tenants[digest] = tenant
    return TokenTable(tenants)


def read_token_file(path: Path) -> str:
    """The token that a caller sends, from a file that holds nothing else.

    Raises:
        InvalidRequest: no such file, or it is empty.
    """
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {path}: {type(error).__name__}", field="token_file") from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest(f"{path} does not hold one token", field="token_file")
    return token
