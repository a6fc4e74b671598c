"""The command `dlite generate`: its flags, in the groups of `--help`. Light at import."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from protos import flags

_LAW, _MASKS, _ENDS = "Sampling", "Allowed tokens", "Ends"
_FORM, _SHOWN, _DRAFTS = "Structured output and tools", "Output", "Speculation"


def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    address: Annotated[
        str, typer.Option(envvar="DLITE_ADDRESS", help="The coordinator, as `dlite up` prints it.")
    ],
    chat: Annotated[bool, typer.Option("--chat/--raw", help="As a chat message, or as it is.")] = True,
    system: Annotated[str | None, typer.Option(help="A system message before it.")] = None,
    params: Annotated[
        Path | None,
        typer.Option(help="JSON file with fields of the request (docs/api.md); flags overrule it."),
    ] = None,
    request_id: Annotated[str | None, typer.Option(help="Makes the request idempotent.")] = None,
    session_id: Annotated[str | None, typer.Option(help="Of the turns of one agent.")] = None,
    tls_ca: flags.CallerCa = None,
    tls_cert: flags.CallerCert = None,
    tls_key: flags.CallerKey = None,
    token_file: flags.TokenFile = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy; default: the model's, else 1.", rich_help_panel=_LAW)
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="The k likeliest tokens only.", rich_help_panel=_LAW)
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="The fewest tokens with this mass.", rich_help_panel=_LAW)
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="At least this share of the likeliest.", rich_help_panel=_LAW)
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="-2 to 2, on tokens that were written.", rich_help_panel=_LAW)
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="-2 to 2, for each time one was written.", rich_help_panel=_LAW)
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divides; 1 is off; counts the prompt too.", rich_help_panel=_LAW)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same text.", rich_help_panel=_LAW)
    ] = None,
    n: Annotated[int | None, typer.Option("--n", "-n", help="How many texts.", rich_help_panel=_LAW)] = None,
    logit_bias: Annotated[
        list[str] | None, typer.Option(help="TOKEN_ID=BIAS, -100 to 100; repeatable.", rich_help_panel=_MASKS)
    ] = None,
    allowed_token_id: Annotated[
        list[int] | None, typer.Option(help="No other token; repeatable.", rich_help_panel=_MASKS)
    ] = None,
    bad_word: Annotated[
        list[str] | None, typer.Option(help="Never written; repeatable.", rich_help_panel=_MASKS)
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens.", rich_help_panel=_ENDS)] = None,
    min_tokens: Annotated[int | None, typer.Option(help="No end before.", rich_help_panel=_ENDS)] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="A string that ends the text; repeatable.", rich_help_panel=_ENDS)
    ] = None,
    stop_token_id: Annotated[
        list[int] | None, typer.Option(help="A token that ends it; repeatable.", rich_help_panel=_ENDS)
    ] = None,
    ignore_eos: Annotated[
        bool | None,
        typer.Option("--ignore-eos", help="The model's own end does not count.", rich_help_panel=_ENDS),
    ] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="File with the schema of the answer.", rich_help_panel=_FORM)
    ] = None,
    regex: Annotated[str | None, typer.Option(help="What the answer matches.", rich_help_panel=_FORM)] = None,
    choice: Annotated[
        list[str] | None, typer.Option(help="One of these; repeatable.", rich_help_panel=_FORM)
    ] = None,
    grammar: Annotated[
        Path | None, typer.Option(help="File with a Lark grammar.", rich_help_panel=_FORM)
    ] = None,
    tools: Annotated[
        Path | None, typer.Option(help="File with a JSON list of functions.", rich_help_panel=_FORM)
    ] = None,
    tool_choice: Annotated[
        str | None, typer.Option(help="auto, none, required, or a name.", rich_help_panel=_FORM)
    ] = None,
    logprobs: Annotated[
        bool | None, typer.Option("--logprobs", help="Of each token (with --json).", rich_help_panel=_SHOWN)
    ] = None,
    top_logprobs: Annotated[
        int | None, typer.Option(help="And of so many likeliest ones.", rich_help_panel=_SHOWN)
    ] = None,
    prompt_logprobs: Annotated[
        bool | None, typer.Option("--prompt-logprobs", help="Of the prompt too.", rich_help_panel=_SHOWN)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=_SHOWN)
    ] = False,
    mode: Annotated[
        str | None,
        typer.Option(help="auto, greedy, coupled, rejection, match, or off.", rich_help_panel=_DRAFTS),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="auto, drafter, lookup, lookup_then_drafter, or off.", rich_help_panel=_DRAFTS),
    ] = None,
    num_draft_tokens: Annotated[
        int | None, typer.Option(help="k, proposals of a round.", rich_help_panel=_DRAFTS)
    ] = None,
    verify_block_size: Annotated[
        int | None, typer.Option(help="v, rows verified in a round.", rich_help_panel=_DRAFTS)
    ] = None,
) -> None:
    """Complete one prompt: text streams to stdout, usage goes to stderr. Ctrl-C aborts."""
    from coordinator.generate import run_generate
    from coordinator.generate_request import build_request
    from protos.security import Endpoint, SecurityFiles

    given = {name: value for name, value in context.params.items() if value is not None}
    request = build_request(sys.stdin.read() if prompt == "-" else prompt, given)
    security = SecurityFiles(tls_cert, tls_key, tls_ca, token_file=token_file).client()
    try:
        code = asyncio.run(run_generate(Endpoint(address, security), request, as_json))
    except KeyboardInterrupt:
        typer.echo("aborted", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(code)
