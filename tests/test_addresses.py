"""What may be an address, in flags and in SetReplicas."""

from __future__ import annotations

import pytest

from coordinator.addresses import addresses_in, check_addresses
from protos.errors import InvalidRequest


def test_hosts_and_sockets_are_addresses() -> None:
    wanted = ["127.0.0.1:5", "[::1]:5", "host.domain:5000", "unix:/run/a b.sock", "dns:///host:1"]
    check_addresses(wanted, "")
    assert addresses_in(" 127.0.0.1:5, unix:x ") == ("127.0.0.1:5", "unix:x")
    assert addresses_in("  ") == ()


@pytest.mark.parametrize(
    "text",
    ["", " h:1", "h:1 ", "host", "host:", "h:1,h:2", "h\x00:1", "\u202eh:1", "h\n:1", "x" * 1000 + ":1"],
)
def test_what_is_none_is_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no address: host:port or unix:PATH") as found:
        check_addresses(["a:1", text], "target_addresses")
    assert found.value.field == "target_addresses"
    assert len(str(found.value)) < 200


def test_an_address_comes_once() -> None:
    with pytest.raises(InvalidRequest, match="twice"):
        addresses_in("a:1,b:1,a:1")


def test_a_long_list_of_colons_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest):
        check_addresses([":" * 5_000_000 + " "], "")
