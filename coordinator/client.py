"""The client of a coordinator.

    from coordinator.client import Client

    with Client("127.0.0.1:7000") as client:
        print(client.ask("Name three rivers.", max_tokens=50).text)

`AsyncClient` has the same methods for asyncio. `client.stream(..)` gives the text as it comes. Both take
several addresses, and go on by themselves in mid-text when a coordinator is lost. Errors are those of
`protos.errors`.
"""

from __future__ import annotations

from coordinator.answer import Answer, ChoiceAnswer
from coordinator.async_client import AnswerStream, AsyncClient, make_request
from coordinator.blocking_client import BlockingStream, Client
from coordinator.patience import ClientOptions

__all__ = [
    "Answer",
    "AnswerStream",
    "AsyncClient",
    "BlockingStream",
    "ChoiceAnswer",
    "Client",
    "ClientOptions",
    "make_request",
]
