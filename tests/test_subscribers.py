"""What a subscriber may not do is refused in the server's words, whatever would stand in for it."""

from __future__ import annotations

import pytest

from tests.raw import request
from tests.servers import Proxy, Server

REFUSED = (
    "SADD set b", "SREM set a", "SMOVE set set2 a", "RENAME set set2", "COPY set set2", "SUNIONSTORE set set2",
    "DEL set", "HINCRBY set a 1", "SMEMBERS set", "DBSIZE", "KEYS *", "MULTI", "EVAL return(1) 1 set",
    "EXPIREMEMBER set a 5", "PERSIST set a", "TTL set a",
)  # fmt: skip


@pytest.mark.every_kind
def test_a_subscriber_hears_that_its_own_command_is_refused(upstream: Server, proxy: Proxy) -> None:
    """In RESP2, where the server takes next to nothing from subscribers; not that of the script in its place."""
    with proxy.connect() as client, proxy.connect() as subscriber:
        client.command("SADD", "set", "a")
        client.command("EXPIREMEMBER", "set", "a", 1000)
        subscribe, lines = request("SUBSCRIBE", "ch"), [line.split() for line in REFUSED]
        subscriber.send(subscribe + b"".join(request(*line) for line in lines))
        assert subscriber.reply() == b"*3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n"
        for line in lines:
            assert subscriber.reply().startswith(b"-ERR Can't execute '%b': only" % line[0].lower().encode()), line
        subscriber.send(request("UNSUBSCRIBE", "ch"))
        assert subscriber.reply() == b"*3\r\n$11\r\nunsubscribe\r\n$2\r\nch\r\n:0\r\n"
        left = (b":1000\r\n", b":999\r\n", b":998\r\n")  # the machine may be busy
        assert subscriber.command("TTL", "set", "a") in left
        assert subscriber.command("RENAME", "set", "set2") == b"+OK\r\n"
        assert subscriber.command("TTL", "set2", "a") in left


@pytest.mark.every_kind(valkey=(9, 1))
def test_publishing_on_the_proxys_channels_is_refused_and_subscribing_is_not(upstream: Server, proxy: Proxy) -> None:
    """As docs/security.md says under "What shows where"."""
    channel = "__expiremember__:proxies"
    with proxy.connect() as client, proxy.connect() as subscriber:
        for word, name in (("SUBSCRIBE", channel), ("PSUBSCRIBE", "__expiremember__:*")):
            subscriber.send(request(word, name))
            assert subscriber.reply().startswith(b"*3\r\n$%d\r\n%s\r\n" % (len(word), word.lower().encode()))
        assert channel.encode() in client.command("PUBSUB", "CHANNELS")
        assert client.command("PUBLISH", channel, "x").startswith(b"-ERR expiremember-proxy: names that begin with")


@pytest.mark.every_kind
def test_what_a_refused_skip_was_to_skip_is_answered_in_words(proxy: Proxy) -> None:
    reserved, skip = request("GET", "__expiremember__:index"), request("CLIENT", "REPLY", "SKIP")
    refusal = b"-ERR expiremember-proxy: names that begin with"
    with proxy.connect() as subscriber:
        subscriber.send(request("SUBSCRIBE", "ch"))
        subscriber.reply()
        for _ in range(3):
            subscriber.send(skip + reserved + request("PING"))
            assert subscriber.reply().startswith(b"-ERR Can't execute 'client")
            assert subscriber.reply().startswith(refusal)
            assert subscriber.reply() == b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
    with proxy.connect() as client:
        for _ in range(3):
            client.send(skip + reserved + request("PING") + reserved)
            assert client.reply() == b"+PONG\r\n"
            assert client.reply().startswith(refusal)
