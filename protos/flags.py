"""Flags that every service has, and those of every command that calls one. Light at import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Services; the environment and the file name them as fields of `ServiceConfig`.
TlsCert = Annotated[
    Path | None, typer.Option(help="Own certificate chain (PEM); with it, the port speaks TLS.")
]
TlsKey = Annotated[Path | None, typer.Option(help="Key of the certificate (PEM).")]
TlsCa = Annotated[
    Path | None, typer.Option(help="Authority (PEM) that callers' and called services' certificates need.")
]
TlsClientAuth = Annotated[
    str | None, typer.Option(help="require (default with --tls-ca) or none: certificates of callers.")
]
AuthTokens = Annotated[
    Path | None, typer.Option(help="YAML file of token hashes and tenants; callers need a token.")
]
LogFormat = Annotated[str | None, typer.Option(help="text or json (one object a line, on stderr).")]
RecordText = Annotated[
    bool | None,
    typer.Option("--record-text/--no-record-text", help="Let prompts and texts into logs; off by default."),
]

# Callers.
CallerCa = Annotated[
    Path | None, typer.Option("--tls-ca", envvar="DLITE_TLS_CA", help="Authority of the server (PEM).")
]
CallerCert = Annotated[
    Path | None, typer.Option("--tls-cert", envvar="DLITE_TLS_CERT", help="Own certificate (PEM).")
]
CallerKey = Annotated[Path | None, typer.Option("--tls-key", envvar="DLITE_TLS_KEY", help="Its key (PEM).")]
TokenFile = Annotated[
    Path | None, typer.Option(envvar="DLITE_TOKEN_FILE", help="File that holds the bearer token.")
]
