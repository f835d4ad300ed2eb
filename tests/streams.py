"""Hypothesis strategies for streams of requests, well formed and not, and for the cuts that a network makes in them."""

from __future__ import annotations

from hypothesis import strategies as st

from proxy.wire.request import encode

KEYS = [b"k1", b"k2", b"plain", b"{t}a", b"a}b"]

_key = st.sampled_from(KEYS)
_word = st.sampled_from([b"m1", b"m2", b"1", b"-3", b"ms", b"NX", b"", b"a b", b"x" * 40, b"~1\r\n", b"|2\r\n\0"])
_name = st.sampled_from(
    b"""GET SET get Set HSET hset SADD ZADD LPUSH HDEL SREM DEL MSET RENAME COPY SMOVE SUNIONSTORE EXPIREMEMBER
    PEXPIREMEMBERAT expirememberat TTL PTTL PERSIST MULTI EXEC DISCARD DBSIZE KEYS SCAN PING UNKNOWN SORT""".split()
)

commands = st.builds(lambda name, key, rest: [name, key, *rest], _name, _key, st.lists(_word, max_size=5))
"""Arguments of requests, most of which mean something to the proxy."""

whole = st.one_of(
    commands.map(encode),
    st.builds(lambda size: encode([b"SET", b"plain", b"v" * size]), st.integers(70_000, 90_000)),
    st.builds(lambda size: encode([b"SADD", b"k1", b"v" * size]), st.integers(30_000, 90_000)),
)

odd = st.sampled_from(
    [
        b"PING\r\n",
        b"\r\n",
        b" \t\n",
        b"\r\r\n",
        b"set plain 'a b'\n",
        b'hset k1 "\\x41\\n" v\r\n',
        b"expiremember k1 m 5\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"*1\r\n$4\r\nPINGxx",
        b"~1\r\n$4\r\nPING\r\n",
        b":0\r\n",
    ]
)
"""What Redis takes as a request, or as nothing, though no client library sends it."""

broken = st.sampled_from(
    [
        b"*abc\r\n",
        b"*01\r\n$4\r\nPING\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n+ok\r\n",
        b"*2\r\n$3\r\nGET\r\n$-1\r\n",
        b"*1\r\n$4x\r\nPING\r\n",
        b"*1\rX$4\r\nPING\r\n$1\r\n",
        b"get 'unbalanced\r\n",
        b"*1\r\n*1\r\n$4\r\nPING\r\n",
    ]
)
"""After any of these Redis closes the connection."""

pipelines = st.lists(st.one_of(whole, whole, whole, odd), min_size=1, max_size=12).map(b"".join)

streams = st.builds(
    lambda pipeline, end, more: pipeline + end + more,
    pipelines,
    st.one_of(st.just(b""), st.just(b""), broken),
    st.one_of(st.just(b""), whole.map(lambda request: request[:-3])),
)
"""Pipelines that may break at the end, or stop within a request."""


def cuts(stream: bytes) -> st.SearchStrategy[list[bytes]]:
    """The stream in pieces."""
    places = st.lists(st.integers(1, max(1, len(stream) - 1)), max_size=8, unique=True).map(sorted)
    return places.map(
        lambda at: [
            stream[begin:end] for begin, end in zip([0, *at], [*at, len(stream)], strict=True) if stream[begin:end]
        ]
    )
