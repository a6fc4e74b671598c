"""Clients in a process of their own: so many texts at a time, for as long as asked.

python -m deploy.bench.flood ADDRESS --concurrency 64 --rounds 100 --k 7 --seconds 10

Prints one JSON line at the end: seconds, and the rounds and texts of that time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from deploy.bench.rounds import counting_request, fixed_rounds
from protos import coordinator_pb2, rpc

METHOD = "/dlite.v1.Coordinator/Generate"


class Flood:
    """Keeps texts running one after the other; counts rounds of those that end.

    Deltas are not parsed: what a client does with them is its own affair.
    """

    def __init__(self, address: str, num_rounds: int, k: int) -> None:
        self._address = address
        self._num_rounds = num_rounds
        self._k = k
        self._stopping = False
        self.num_rounds = 0
        self.num_texts = 0

    async def run(self, concurrency: int, seconds: float) -> float:
        """Returns the seconds that all of it took."""
        async with rpc.open_channel(self._address) as channel:
            call: Any = channel.unary_stream(METHOD)
            started = time.perf_counter()
            timer = asyncio.get_running_loop().call_later(seconds, self._stop)
            await asyncio.gather(*(self._worker(call, number) for number in range(concurrency)))
            timer.cancel()
            return time.perf_counter() - started

    def _stop(self) -> None:
        self._stopping = True

    async def _worker(self, call: Any, number: int) -> None:
        turn = 0
        while not self._stopping or not turn:
            turn += 1
            max_tokens = 1 + self._num_rounds * (self._k + 1)
            request = counting_request(f"flood/{number}/{turn}", max_tokens, fixed_rounds(self._k))
            last = b""
            async for data in call(request.SerializeToString()):
                last = data
            ledger = coordinator_pb2.GenerateResponse.FromString(last).finished.ledger
            self.num_rounds += ledger.num_rounds
            self.num_texts += 1


async def _run(options: argparse.Namespace) -> None:
    flood = Flood(options.address, options.rounds, options.k)
    seconds = await flood.run(options.concurrency, options.seconds)
    record = {"seconds": seconds, "num_rounds": flood.num_rounds, "num_texts": flood.num_texts}
    print(json.dumps(record), flush=True)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--k", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10.0)
    asyncio.run(_run(parser.parse_args(argv)))


if __name__ == "__main__":
    main(sys.argv[1:])
