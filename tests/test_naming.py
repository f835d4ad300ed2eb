"""The names of the proxy's own keys: one shadow a key, in the key's own cluster slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.scripts.naming import Names, slot
from tests.conftest import StartServer
from tests.servers import free_port

NAMES = Names(b"__expiremember__:")

keys = st.one_of(
    st.binary(max_size=12), st.text("ab{}", max_size=8).map(str.encode), st.sampled_from([b"", b"a}b", b"{}x", b"{x}"])
)


@given(keys)
def test_a_shadow_names_its_key_and_shares_its_slot(key: bytes) -> None:
    shadow = NAMES.shadow(key)
    assert NAMES.key(shadow) == key
    assert slot(shadow) == slot(key)
    assert shadow.startswith(NAMES.prefix)


@given(keys, keys)
def test_two_keys_never_share_a_shadow(one: bytes, other: bytes) -> None:
    assert (NAMES.shadow(one) == NAMES.shadow(other)) == (one == other)


@pytest.mark.parametrize("name", [NAMES.index, NAMES.lease, b"cart", b"__expiremember__:s:{x"])
def test_other_names_are_no_shadows(name: bytes) -> None:
    assert NAMES.key(name) is None


@pytest.mark.parametrize("prefix", [b"", b"a{b", b"a}b"])
def test_a_prefix_that_would_change_the_slot_is_refused(prefix: bytes) -> None:
    with pytest.raises(ValueError, match="prefix"):
        Names(prefix)


def test_the_slot_is_the_one_that_a_server_computes(start_server: StartServer) -> None:
    server = start_server("redis-7.0", "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    for key in [b"cart", b"{user1}:cart", b"a}b", b"{}x", b"x{}{y}", b"a{b", b""]:
        assert server.command("CLUSTER", "KEYSLOT", key) == b":%d\r\n" % slot(key)
