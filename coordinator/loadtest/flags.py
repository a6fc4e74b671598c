"""From the flags of `dlite loadtest` to a job. Pure, and light to import."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.loadtest.options import Data, check_data, parse_body, parse_points
from protos.errors import InvalidRequest

if TYPE_CHECKING:
    from coordinator.loadtest.execution import Job
    from protos.security import Endpoint

SOURCES = ("auto", "drafter", "lookup", "lookup_then_drafter")
SAMPLING = ("temperature", "top_p", "top_k", "model")
FIXED_SEED = "the seed is fixed: a second run sends the same prompts, which the server may have cached"


def make_job(given: Mapping[str, Any], random_seed: Callable[[], int]) -> Job:
    """Checks all flags.

    Args:
        given: the command's parameters by name.
        random_seed: draws a seed when none is given.

    Raises:
        InvalidRequest: naming the flag.
    """
    from coordinator.loadtest.execution import Job

    seed = random_seed() if given["seed"] is None else given["seed"]
    return Job(
        data=_data(given),
        points=parse_points(given["request_rate"], given["max_concurrency"]),
        seed=seed,
        run_id=f"loadtest-{random_seed():x}",
        burstiness=given["burstiness"],
        ramp=_ramp(given),
        fields=_fields(given),
        baseline_blocks=given["baseline_blocks"] if given["baseline"] else 0,
        max_seconds=math.inf if given["max_duration"] is None else given["max_duration"],
        num_warmups=given["num_warmups"],
    )


def make_addresses(address: str | None, host: str, port: int | None) -> tuple[str, ...]:
    """`--host` and `--port`, else `--address`: one, or several with commas. Raises InvalidRequest."""
    if port is not None:
        return (f"{host}:{port}",)
    if not address:
        raise InvalidRequest("give --address, or --port (and --host)", field="--address")
    return tuple(
        each.strip().removeprefix("http://").rstrip("/") for each in address.split(",") if each.strip()
    )


def make_endpoints(given: Mapping[str, Any]) -> tuple[Endpoint, ...]:
    """All addresses, with the security that the flags ask for. Raises InvalidRequest."""
    from protos.security import Endpoint, SecurityFiles

    files = SecurityFiles(
        given["tls_cert"], given["tls_key"], given["tls_ca"], token_file=given["token_file"]
    )
    addresses = make_addresses(given["address"], given["host"], given["port"])
    return tuple(Endpoint(address, files.client()) for address in addresses)


def seed_warnings(seed: int | None) -> list[str]:
    return [] if seed is None else [FIXED_SEED]


def result_path(given: Mapping[str, Any], name: str) -> Path:
    """Where a result is saved; `name` unless a name was given."""
    return Path(given["result_dir"] or ".") / (given["result_filename"] or name)


def _data(given: Mapping[str, Any]) -> Data:
    return check_data(
        Data(
            name=given["dataset_name"],
            path=given["dataset_path"],
            num_prompts=given["num_prompts"],
            input_len=given["input_len"],
            output_len=given["output_len"],
            range_ratio=given["range_ratio"],
            shared_prefix_len=given["shared_prefix_len"],
            turns=given["turns"],
            turn_len=given["turn_len"],
            pause_seconds=given["pause_ms"] / 1e3,
            cancel_rate=given["cancel_rate"],
            raw_prompts=given["skip_chat_template"],
        )
    )


def _ramp(given: Mapping[str, Any]) -> Any:
    from coordinator.loadtest.arrivals import Ramp

    strategy, start, end = (given["ramp_up_" + name] for name in ("strategy", "start_rps", "end_rps"))
    if strategy is None and start is None and end is None:
        return None
    if strategy is None or start is None or end is None:
        raise InvalidRequest(
            "goes with --ramp-up-start-rps and --ramp-up-end-rps", field="--ramp-up-strategy"
        )
    if given["request_rate"] != "inf":
        raise InvalidRequest("a ramp replaces it: leave it out", field="--request-rate")
    return Ramp(strategy, start, end)


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of every request; --extra-body has the last word."""
    from protos.coordinator_pb2 import GenerateRequest

    fields: dict[str, Any] = {name: given[name] for name in SAMPLING if given[name] is not None}
    if given["ignore_eos"]:
        fields["ignore_eos"] = True
    speculation = {
        name: given[name] for name in ("num_draft_tokens", "verify_block_size") if given[name] is not None
    }
    if given["source"] is not None:
        if given["source"] not in SOURCES:
            raise InvalidRequest(f"{given['source']!r}: one of {', '.join(SOURCES)}", field="--source")
        speculation["source"] = f"PROPOSAL_SOURCE_{given['source'].upper()}"
    if speculation:
        fields["speculation"] = speculation
    fields |= parse_body(given["extra_body"])
    try:
        GenerateRequest(**fields)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"not a request: {error}", field="--extra-body") from error
    return fields
