"""`dlite certs` and `dlite token`: what trying out security needs.

A small authority of one's own, for tests, demos and a closed cluster. Where there is an authority
already (cert-manager, a company's own), use its certificates: the services take any PEM files.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protos.errors import InvalidRequest, NotFound
from protos.tokens import draw_token, token_hash

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA_CERT, CA_KEY = "ca.pem", "ca-key.pem"
DAYS = 365
_LOCAL = ("localhost", "127.0.0.1", "::1")
_SECRET_MODE = 0o600


@dataclass(frozen=True)
class Signer:
    """A certificate and the key that signs with it."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certificates(folder: Path, names: Sequence[str], hosts: Sequence[str]) -> list[Path]:
    """Writes `ca.pem` and `NAME.pem`, `NAME-key.pem` for each name; an authority that is there is used.

    Args:
        names: of processes, such as target, draft, coordinator, client.
        hosts: names and addresses that the certificates are good for, beside this machine's own.

    Returns:
        Files written.

    Raises:
        NotFound: the library `cryptography` is not installed.
    """
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: F401
    except ImportError as error:
        raise NotFound("certificates need `pip install dlite[security]`") from error
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    if (folder / CA_CERT).exists() and (folder / CA_KEY).exists():
        authority = _read(folder)
    else:
        authority = _issue("dlite authority", None, ())
        written += _write(folder, CA_CERT, CA_KEY, authority)
    for name in names:
        signer = _issue(name, authority, (*_LOCAL, *hosts))
        written += _write(folder, f"{name}.pem", f"{name}-key.pem", signer)
    return written


def _issue(name: str, authority: Signer | None, hosts: Sequence[str]) -> Signer:
    """A certificate by the authority, or one of its own that can sign others."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject if authority is not None else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    signing_key = authority.key if authority is not None else key
    return Signer(builder.sign(signing_key, hashes.SHA256()), key)


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _read(folder: Path) -> Signer:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate((folder / CA_CERT).read_bytes())
    except ValueError as error:
        raise InvalidRequest(f"{folder / CA_KEY} or {CA_CERT} is no PEM of ours", field="folder") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidRequest(f"{folder / CA_KEY} is no key of ours", field="folder")
    return Signer(certificate, key)


def _write(folder: Path, certificate_name: str, key_name: str, signer: Signer) -> list[Path]:
    from cryptography.hazmat.primitives import serialization

    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    key = signer.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    certificate_path, key_path = folder / certificate_name, folder / key_name
    certificate_path.write_bytes(signer.certificate.public_bytes(pem))
    key_path.unlink(missing_ok=True)
    with os.fdopen(os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _SECRET_MODE), "wb") as file:
        file.write(key)
    return [certificate_path, key_path]


def certs(
    folder: Annotated[Path, typer.Argument(help="where to write; an authority there is used")],
    name: Annotated[
        list[str] | None, typer.Option(help="whose certificate; repeatable; default: all three and client")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="a name or address besides localhost; repeatable")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Makes a small authority and certificates by it, for trying out TLS."""
    names = name or ["target", "draft", "coordinator", "client"]
    written = make_certificates(folder, names, host or [])
    if as_json:
        print(json.dumps({"files": [str(path) for path in written]}))
        return
    for path in written:
        typer.echo(path)


def token(
    tenant: Annotated[str, typer.Argument(help="whose token")],
    file: Annotated[Path | None, typer.Option(help="write the token here (owner only)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Draws a bearer token, and prints the entry for a service's --auth-tokens file."""
    drawn = draw_token()
    entry = {"sha256": token_hash(drawn), "tenant": tenant}
    if file is not None:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _SECRET_MODE), "w") as out:
            out.write(drawn + "\n")
    if as_json:
        print(json.dumps({**entry, **({} if file is not None else {"token": drawn})}))
        return
    if file is None:
        typer.echo(f"token: {drawn}", err=True)
    typer.echo(f"  - {{sha256: {entry['sha256']}, tenant: {tenant}}}")
