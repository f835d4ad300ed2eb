"""Behind Sentinels: the primary is found and followed, and nothing that the proxy passes on outlives a switch."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel as RedisPySentinel

from proxy.check.findings import Level
from tests.admin import Admin, admin_of
from tests.conftest import StartProxy, StartServer, once_a_kind
from tests.keydb_files import recorded
from tests.raw import Raw, about
from tests.sentinels import NAME, Sentinel, Watched
from tests.servers import KIND, KINDS, Proxy, Server, free_port, halt, until
from tests.test_check import found
from tests.test_events_command import events
from tests.test_import import bring
from tests.test_tls import KIND as TLS_KIND
from tests.test_tls import Files, files, flags

__all__ = ["files"]  # a fixture

TESTED: list[str] = [kind for kind in ("redis-7.0", "valkey-8.0") if kind in KINDS] or [KIND]

SERVED_SECONDS = 2.0
"""How long after `+switch-master` clients are served again, at most."""


@pytest.fixture(scope="module")
def shared_watched() -> Iterator[Callable[[str], Watched]]:
    yield from once_a_kind(Watched)


@pytest.fixture(params=TESTED)
def watched(request: pytest.FixtureRequest, shared_watched: Callable[[str], Watched]) -> Watched:
    """A primary, two replicas and three Sentinels of a kind, whole and empty."""
    return renewed(shared_watched(request.param))


@pytest.fixture
def one_watched(shared_watched: Callable[[str], Watched]) -> Watched:
    """The same, for tests for which one kind is enough."""
    return renewed(shared_watched(TESTED[0]))


def renewed(watched: Watched) -> Watched:
    watched.until_whole().flush()
    return watched


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start_with_admin(start_proxy: StartProxy, url: str, *args: str, ready: bool = True) -> tuple[Proxy, Admin]:
    flagged = ("--admin", "127.0.0.1:0", "--upstream", url, "--leftovers-rate", "0")
    proxy = start_proxy(None, *flagged, *args, ready=ready)
    return proxy, admin_of(proxy)


def events_of(proxy: Proxy, event: str) -> list[dict[str, object]]:
    return [line for line in proxy.log() if line["event"] == event]


def until_asked_again(sentinel: Sentinel) -> None:
    """Wait until somebody else has asked a Sentinel more than one round of questions takes."""
    with sentinel.connect() as client:

        def requests() -> int:
            found = re.search(rb"total_commands_processed:(\d+)", client.command("INFO", "stats"))
            assert found
            return int(found[1])

        before, own = requests(), 0

        def are_there_more() -> bool:
            nonlocal own
            own += 1
            return requests() - before - own >= 4

        until(are_there_more, what="questions")


def greetings(server: Server) -> int:
    """How often a server has been asked for HELLO, which tells its role."""
    found = re.search(rb"cmdstat_hello:calls=(\d+)", server.command("INFO", "commandstats"))
    return int(found[1]) if found else 0


# Failovers under load.


@dataclass
class Writer:
    """Adds numbered members to a set, one after the other, and notes which were acknowledged.

    Attributes:
        write: adds a member, with a connection of its own; raises when it is not acknowledged.
        acknowledged: the members, each with the moment.
        failures: what was raised.
    """

    write: Callable[[str], None]
    acknowledged: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        number = 0
        while not self.ended.is_set():
            number += 1
            try:
                self.write(f"m{number}")
            except (OSError, redis.RedisError, AssertionError) as error:
                self.failures.append(repr(error))
                time.sleep(0.005)
            else:
                self.acknowledged[f"m{number}"] = time.monotonic()
            time.sleep(0.002)


def through_proxy(proxy: Proxy, key: str, stack: ExitStack) -> Writer:
    """A client of the proxy that connects again when its connection ends, as client libraries do."""
    connection: list[Raw] = []

    def write(member: str) -> None:
        if not connection:
            connection.append(proxy.connect(timeout=30))
        try:
            reply = connection[0].command("SADD", key, member)
        except OSError:
            connection.pop().close()
            raise
        assert reply == b":1\r\n", reply

    def close() -> None:
        for one in connection:
            one.close()

    stack.callback(close)
    return Writer(write)


def by_library(watched: Watched, key: str, stack: ExitStack) -> Writer:
    """What people have without the proxy: redis-py, which asks the Sentinels itself."""
    hosts = [("127.0.0.1", sentinel.port) for sentinel in watched.sentinels]
    library: Any = RedisPySentinel(hosts, socket_timeout=1)  # type: ignore[no-untyped-call]
    client = library.master_for(NAME, socket_timeout=1, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0))

    def close() -> None:
        client.close()
        for sentinel in library.sentinels:
            sentinel.close()

    stack.callback(close)
    return Writer(lambda member: _sole(client.sadd(key, member)))


def _sole(added: object) -> None:
    assert added == 1, added


class Announced:
    """Hears `+switch-master` of all Sentinels."""

    def __init__(self, watched: Watched, stack: ExitStack) -> None:
        self.moments: list[tuple[float, bytes]] = []
        for sentinel in watched.sentinels:
            client = stack.enter_context(sentinel.connect())
            client.socket.settimeout(None)
            client.command("SUBSCRIBE", "+switch-master")
            thread = threading.Thread(target=self._hear, args=(client,), daemon=True)
            thread.start()
            stack.callback(thread.join, 5)
            stack.callback(self._hang_up, client)

    @staticmethod
    def _hang_up(client: Raw) -> None:
        with contextlib.suppress(OSError):
            client.socket.shutdown(socket.SHUT_RDWR)

    def _hear(self, client: Raw) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                message = client.reply()
                self.moments.append((time.monotonic(), message))


def set_deadlines(proxy: Proxy, round_: int) -> float:
    """Give members deadlines before a failover; return when the earlier ones pass."""
    with proxy.connect() as client:
        client.command("DEL", "soon", "late")
        for member in ("a", "b", "c"):
            assert client.command("SADD", "soon", member, f"stays-{round_}").startswith(b":")
            assert client.command("EXPIREMEMBER", "soon", member, 4) == b":1\r\n"
            assert client.command("HSET", "late", member, 1) == b":1\r\n"
            assert client.command("EXPIREMEMBER", "late", member, 1000) == b":1\r\n"
        # What is lost with the old primary is not the proxy's.
        assert client.command("WAIT", 2, 5000) == b":2\r\n"
    return time.monotonic() + 4


def see_deadlines(proxy: Proxy, primary: Server, passed: float, round_: int) -> None:
    """See that deadlines that were set before work: the sweeper removes what is due, and no other."""
    with proxy.connect() as client:
        left = int(client.command("TTL", "late", "a")[1:-2])
        assert 900 < left <= 1000  # the Sentinels may need some attempts
        assert client.command("HLEN", "late") == b":3\r\n"
        if time.monotonic() < passed - 0.5:
            assert client.command("SCARD", "soon") == b":4\r\n"
        until(lambda: time.monotonic() >= passed, 10)
        until(lambda: client.command("SCARD", "soon") == b":1\r\n", 2, "an expiry at the new primary")
        until(lambda: primary.command("SMEMBERS", "soon") == b"*1\r\n$7\r\nstays-%d\r\n" % round_, 5, "a sweep")
        # What is added again has no deadline any more.
        assert client.command("SADD", "soon", "a") == b":1\r\n"
        assert client.command("TTL", "soon", "a") == b":-1\r\n"


def check_failovers(watched: Watched, start_proxy: StartProxy, ways: list[str]) -> tuple[int, int]:
    """Have failovers under load; return how many acknowledged writes were lost with the proxy, and without it."""
    proxy, admin = start_with_admin(start_proxy, watched.url)
    lost = [0, 0]
    for round_, way in enumerate(ways):
        old = watched.until_whole()
        passed = set_deadlines(proxy, round_)
        with ExitStack() as stack:
            announced = Announced(watched, stack)
            writers = [
                through_proxy(proxy, f"with-{round_}", stack),
                by_library(watched, f"without-{round_}", stack),
            ]
            threads = [threading.Thread(target=writer.run, daemon=True) for writer in writers]
            for thread in threads:
                thread.start()
            until(lambda: all(len(writer.acknowledged) > 50 for writer in writers), 20, "a load")  # noqa: B023
            if way == "asked for":
                watched.fail_over()
            else:
                assert old.process is not None
                halt(old.process.pid) if way == "hangs" else old.process.kill()
            heard = until(lambda: announced.moments, 60, "+switch-master")[0][0]  # noqa: B023
            until(lambda: writers[0].failures, 20, "an end at the old primary")  # noqa: B023
            enough = len(writers[0].acknowledged) + 20
            until(lambda: len(writers[0].acknowledged) >= enough, 20, "writes at the new primary")  # noqa: B023
            new = watched.server(int(re.findall(rb"(\d+)\r\n$", announced.moments[0][1])[0]))
            see_deadlines(proxy, new, passed, round_)
            for writer in writers:
                writer.ended.set()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
        assert old.process is not None
        if way == "hangs":
            old.process.send_signal(signal.SIGCONT)
        elif way == "dies":
            old.stop(signal.SIGKILL)
            old.start()
        watched.until_whole()
        for place, (writer, key) in enumerate(zip(writers, ("with", "without"), strict=True)):
            kept = set(re.findall(rb"(?m)^(m\d+)\r", new.command("SMEMBERS", f"{key}-{round_}")))
            gone = [member for member in writer.acknowledged if member.encode() not in kept]
            lost[place] += len(gone)
            # What was acknowledged after the announcement, and is there, was written at the new primary.
            later = [when for member, when in writer.acknowledged.items() if when > heard and member.encode() in kept]
            print(
                f"{watched.kind}, {way}, {key} the proxy: {len(writer.acknowledged)} acknowledged, {len(gone)} lost;"
                f" served {min(later) - heard:.3f} s after +switch-master"
            )
            if place == 0:
                assert min(later) - heard < SERVED_SECONDS, (way, proxy.process.output[-4000:])
    # Each switch was seen, and as what it was.
    assert len(events_of(proxy, "upstream switched")) >= len(ways)
    assert admin.metrics()["upstream_switches_total"] >= len(ways)
    assert admin.ask("/readyz") == (200, "ready\n")
    proxy.stop()
    return lost[0], lost[1]


def test_failovers_under_load(watched: Watched, start_proxy: StartProxy) -> None:
    with_proxy, without = check_failovers(watched, start_proxy, ["asked for", "hangs"])
    assert with_proxy <= without


@pytest.mark.long
def test_ten_failovers_under_load(watched: Watched, start_proxy: StartProxy) -> None:
    ways = ["asked for", "dies", "hangs", "asked for", "dies"] * 2
    with_proxy, without = check_failovers(watched, start_proxy, ways)
    assert with_proxy <= without


def check_followed(watched: Watched, proxy: Proxy, admin: Admin) -> None:
    """What a failover looks like to clients, also to those that do nothing or wait."""
    old = watched.until_whole()
    with proxy.connect() as idle, proxy.connect() as waiting, proxy.connect() as queueing:
        assert idle.command("PING") == b"+PONG\r\n"
        waiting.send_command("BLPOP", "nothing", 0)
        assert queueing.command("MULTI") == b"+OK\r\n"
        assert queueing.command("SET", "k", "v") == b"+QUEUED\r\n"
        watched.fail_over()
        for client in (idle, waiting, queueing):
            assert client.rest() == b""
    assert proxy.command("GET", "k") == b"$-1\r\n"
    new = watched.until_whole()
    assert new is not old
    said = proxy.command("INFO", "expiremember")
    assert b"upstream:redis://127.0.0.1:%d\r\n" % new.port in said
    status, text = admin.ask("/metrics")
    assert status == 200
    assert f'expiremember_upstream_up{{upstream="redis://127.0.0.1:{new.port}"' in text
    # Whoever is at the old primary still has come there without the proxy.
    assert b" name=expiremember-proxy" not in old.command("CLIENT", "LIST")


def test_every_worker_follows(one_watched: Watched, start_proxy: StartProxy) -> None:
    proxy, admin = start_with_admin(start_proxy, one_watched.url, "--workers", "2")
    with ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in range(8)]
        workers = {re.findall(rb"\nworker:(\d)", client.command("INFO", "expiremember"))[0] for client in clients}
        assert workers == {b"1", b"2"}
        check_followed(one_watched, proxy, admin)
        for client in clients:
            assert client.rest() == b""
    metrics = admin.metrics()
    for worker in (1, 2):
        assert metrics[f"upstream_switches_total{{worker={worker}}}"] == 1
        assert metrics[f"sentinels_up{{worker={worker}}}"] == 3
    proxy.stop()


# Sentinels without replicas: quick, and sure.


def lone(stack: ExitStack, primary: Server, *options: str, name: str = NAME, quorum: int = 1) -> Sentinel:
    """Start a Sentinel."""
    sentinel = Sentinel(primary.kind, primary.port, options, name, quorum)
    stack.callback(sentinel.close)
    return sentinel


def url_of(*sentinels: Sentinel, login: str = "", name: str = NAME) -> str:
    return f"redis+sentinel://{login}{','.join(f'127.0.0.1:{one.port}' for one in sentinels)}/{name}"


def tell_of(server: Server, *sentinels: Sentinel) -> None:
    """Have Sentinels name another server, as after they have been set up anew."""
    for sentinel in sentinels:
        assert sentinel.command("SENTINEL", "REMOVE", NAME) == b"+OK\r\n"
        assert sentinel.command("SENTINEL", "MONITOR", NAME, "127.0.0.1", server.port, 1) == b"+OK\r\n"


def where(proxy: Proxy) -> bytes:
    """What a new client reads there, and nothing if it has come in front of a switch, which ends connections."""
    with contextlib.suppress(ConnectionError):
        return proxy.command("GET", "where")
    return b""


def check_moves(server: Server, start_proxy: StartProxy) -> None:
    """Another server is followed: at once, with all connections and all deadlines; and a replica is no primary."""
    with ExitStack() as stack:
        other = Server(server.kind)
        stack.callback(other.close)
        # Of several addresses the last counts.
        before = start_proxy(server, "--upstream", other.url)
        with before.connect() as client:
            assert client.command("SADD", "s", "late", "due", "never") == b":3\r\n"
            assert client.command("EXPIREMEMBER", "s", "late", 1000) == b":1\r\n"
            assert client.command("PEXPIREMEMBER", "s", "due", 900) == b":1\r\n"
        before.close()
        due = time.monotonic() + 0.9
        sentinel = lone(stack, server)
        proxy = start_proxy(server, "--upstream", url_of(sentinel), "--connect-timeout", "1")
        idle = stack.enter_context(proxy.connect(timeout=8))
        assert idle.command("SADD", "s", "here") == b":1\r\n"
        until(lambda: time.monotonic() > due)
        tell_of(other, sentinel)
        assert idle.rest() == b""
        with proxy.connect(timeout=8) as client:
            assert client.command("SCARD", "s") == b":2\r\n"
            assert client.command("SISMEMBER", "s", "due") == b":0\r\n"
            assert about(client.command("TTL", "s", "late"), 1000)
        until(lambda: other.command("SCARD", "s") == b":2\r\n", 3, "a sweep at the other server")
        assert b" name=expiremember-proxy" not in server.command("CLIENT", "LIST")
        # The server becomes a replica, which the Sentinel does not know.
        other.command("REPLICAOF", "127.0.0.1", server.port)
        other.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        other.command("CLIENT", "KILL", "TYPE", "pubsub")
        until(lambda: b"is a replica, and the Sentinels say" in proxy.command("PING"), 8, "a refusal")
        other.command("REPLICAOF", "NO", "ONE")
        until(lambda: proxy.command("PING") == b"+PONG\r\n", 10, "a primary again")


def test_another_server_is_followed(server: Server, start_proxy: StartProxy) -> None:
    check_moves(server, start_proxy)


def test_sentinels_that_die_and_come_back(start_server: StartServer, start_proxy: StartProxy, stack: ExitStack) -> None:
    server, other = start_server(TESTED[0]), start_server(TESTED[0])
    other.command("SET", "where", "other")
    sentinels = [lone(stack, server, quorum=2) for _ in range(3)]
    proxy, admin = start_with_admin(start_proxy, url_of(*sentinels))
    with proxy.connect() as client:
        assert client.command("SADD", "s", "m") == b":1\r\n"
        until(lambda: admin.metrics()["sentinels_up"] == 3, what="all Sentinels")
        for sentinel in sentinels:
            sentinel.stop()
        until(lambda: admin.metrics()["sentinels_up"] == 0, what="the loss of all Sentinels")
        # Nothing is known to be wrong with the primary.
        assert client.command("EXPIREMEMBER", "s", "m", 100) == b":1\r\n"
        assert proxy.command("PING") == b"+PONG\r\n"
        assert admin.ask("/readyz")[0] == 200
        told = events_of(proxy, "sentinel cannot be used")
        assert {line["sentinel"] for line in told} == {f"127.0.0.1:{one.port}" for one in sentinels}
        assert len(told) <= 6  # once for each, and once more if it said something else as it ended
        late, late_admin = start_with_admin(start_proxy, url_of(*sentinels))
        status, text = late_admin.ask("/readyz")
        assert status == 503
        assert "no Sentinel names the primary" in text
        refused = late.command("PING")
        assert refused.startswith(b"-ERR expiremember-proxy: upstream redis+sentinel://127.0.0.1:")
        assert b"is unavailable: no Sentinel names the primary: 127.0.0.1:" in refused
        for sentinel in sentinels:
            sentinel.start()
        for one in (admin, late_admin):
            until(lambda: one.metrics()["sentinels_up"] == 3, what="all Sentinels")  # noqa: B023
        until(lambda: late_admin.ask("/readyz")[0] == 200, what="readiness")
        assert about(late.command("TTL", "s", "m"), 100)
        until(lambda: len(events_of(proxy, "sentinel can be used again")) == 3, what="the news of it")
        tell_of(other, *sentinels)
        assert client.rest() == b""
    for either in (proxy, late):
        until(lambda: where(either) == b"$5\r\nother\r\n", what="the other server")  # noqa: B023
        either.stop()


def test_a_sentinel_that_is_wrong_is_outvoted(
    start_server: StartServer, start_proxy: StartProxy, stack: ExitStack
) -> None:
    right, wrong = start_server(TESTED[0]), start_server(TESTED[0])
    wrong.command("SET", "where", "wrong")
    right.command("SET", "where", "right")
    liar = lone(stack, wrong)
    honest = [lone(stack, right, quorum=2) for _ in range(2)]
    proxy, admin = start_with_admin(start_proxy, url_of(liar, *honest))
    assert proxy.command("GET", "where") == b"$5\r\nright\r\n"
    until(lambda: admin.metrics()["sentinels_up"] == 3, what="all Sentinels")
    said = found(url_of(liar, *honest))["sentinels"]
    assert said.level is Level.WARNING
    assert f"127.0.0.1:{liar.port} names 127.0.0.1:{wrong.port}" in said.text
    # The others die: nobody is led astray by the one that is left.
    for sentinel in honest:
        sentinel.stop()
    until(lambda: admin.metrics()["sentinels_up"] == 1, what="the loss of two Sentinels")
    until_asked_again(liar)
    assert proxy.command("GET", "where") == b"$5\r\nright\r\n"
    assert not events_of(proxy, "upstream switched")
    proxy.stop()


def test_passwords_of_sentinels_and_of_servers(
    start_server: StartServer, start_proxy: StartProxy, stack: ExitStack, tmp_path: Path
) -> None:
    kind = TESTED[0]
    server = start_server(kind, "--requirepass", "of-the-server")
    options = [f"sentinel auth-pass {NAME} of-the-server", "requirepass of-the-sentinel"]
    options.append(
        "user follower on >of-the-user resetchannels &+switch-master &+promoted-slave -@all +hello +auth +client"
        " +subscribe +sentinel|master +sentinel|get-master-addr-by-name"
    )
    sentinel = lone(stack, server, *options)
    sentinel.password = "of-the-sentinel"
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    url = url_of(sentinel, login=":of-the-server@")
    # Without a password, with a wrong one, and with the right one in its place.
    bare, admin = start_with_admin(start_proxy, url)
    assert "it requires a password, and the proxy has none for it" in admin.ask("/readyz")[1]
    (warning,) = events_of(bare, "sentinel cannot be used")
    assert warning["advice"] == "set sentinel_password_file"
    proxy, admin = start_with_admin(start_proxy, url, "--sentinel-password-file", str(secret))
    assert "it refuses the proxy's login" in admin.ask("/readyz")[1]
    assert b"-ERR expiremember-proxy: upstream redis+sentinel://127.0.0.1" in proxy.command("PING")
    secret.write_text("of-the-sentinel\n")
    until(lambda: admin.ask("/readyz")[0] == 200, what="a login with the new password")
    with proxy.connect() as client:
        assert client.command("PING").startswith(b"-NOAUTH")
        assert client.command("AUTH", "of-the-server") == b"+OK\r\n"
        assert client.command("SADD", "s", "m") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "s", "m", 100) == b":1\r\n"
    secret.write_text("of-the-user\n")
    user = start_proxy(
        None, "--upstream", url, "--sentinel-user", "follower", env={"EXPIREMEMBER_SENTINEL_PASSWORD_FILE": str(secret)}
    )
    assert user.command("PING").startswith(b"-NOAUTH")
    assert "refuses" not in user.process.output
    for one in (bare, proxy, user):
        for word in ("of-the-server", "of-the-sentinel", "of-the-user", "wrong"):
            assert word not in one.process.output
        one.stop()


def test_what_is_no_sentinel_or_knows_no_such_primary(
    start_server: StartServer, start_proxy: StartProxy, stack: ExitStack
) -> None:
    server = start_server(TESTED[0])
    sentinel = lone(stack, server)
    proxy, admin = start_with_admin(
        start_proxy, f"redis+sentinel://127.0.0.1:{server.port},127.0.0.1:{sentinel.port},127.0.0.1:{free_port()}/other"
    )
    status, text = admin.ask("/readyz")
    assert status == 503
    assert f"127.0.0.1:{server.port}: it is not a Sentinel" in text
    assert f"127.0.0.1:{sentinel.port}: it knows no primary with the name 'other'" in text
    assert "connection refused" in text
    assert sentinel.command("SENTINEL", "MONITOR", "other", "127.0.0.1", server.port, 1) == b"+OK\r\n"
    until(lambda: admin.ask("/readyz")[0] == 200, what="a primary")
    assert proxy.command("SET", "k", "v") == b"+OK\r\n"
    proxy.stop()


def test_sentinels_and_servers_by_tls(
    files: Files, start_server: StartServer, start_proxy: StartProxy, stack: ExitStack
) -> None:
    keys = ["tls-cert-file", "tls-key-file", "tls-ca-cert-file"]
    values = [str(files.server.file), str(files.server.key), str(files.authority.file)]
    port = free_port()
    options = [part for key, value in zip(keys, values, strict=True) for part in (f"--{key}", value)]
    server = start_server(TLS_KIND, "--tls-port", str(port), "--tls-auth-clients", "no", *options)
    secure = free_port()
    sentinel = lone(
        stack,
        server,
        f"tls-port {secure}",
        "tls-replication yes",
        "tls-auth-clients no",
        *(f"{key} {value}" for key, value in zip(keys, values, strict=True)),
        name="plain",
    )
    assert sentinel.command("SENTINEL", "MONITOR", NAME, "127.0.0.1", port, 1) == b"+OK\r\n"
    url = f"rediss+sentinel://127.0.0.1:{secure}/{NAME}"
    proxy = start_proxy(None, "--upstream", url, *flags(tls_ca_file=files.authority.file))
    assert proxy.command("SET", "k", "v") == b"+OK\r\n"
    assert server.command("GET", "k") == b"$1\r\nv\r\n"
    proxy.stop()
    unsure = start_proxy(None, "--upstream", url)
    (warning,) = events_of(unsure, "sentinel cannot be used")
    assert "certificate" in str(warning["state"])


# A plain address.


def check_demoted(server: Server, start_proxy: StartProxy) -> None:
    """What was begun at a primary ends when it refuses to write, as often as that happens."""
    try:
        _check_demoted(server, start_proxy)
    finally:
        server.command("REPLICAOF", "NO", "ONE")


def _check_demoted(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, "--admin", "127.0.0.1:0")
    admin = admin_of(proxy)
    for again in (1, 2):
        with proxy.connect(timeout=8) as idle:
            assert idle.command("SADD", "s", "a", "b", "c").startswith(b":")
            assert idle.command("PEXPIREMEMBER", "s", "a", 300) == b":1\r\n"
            server.command("REPLICAOF", "127.0.0.1", 1)
            # The sweeper is refused: nobody goes on as at a primary.
            assert idle.rest() == b""
        assert proxy.command("SADD", "s", "d").startswith(b"-READONLY")
        assert admin.metrics()["upstream_switches_total"] == again
        assert admin.ask("/readyz")[0] == 200  # as in front of any replica
        server.command("REPLICAOF", "NO", "ONE")
        until(lambda: proxy.command("SADD", "s", "a") == b":1\r\n", what="a write")
        greeted = greetings(server)
        until(lambda: greetings(server) > greeted, what="a question for its role")  # noqa: B023
    reasons = [line["reason"] for line in events_of(proxy, "upstream switched")]
    assert reasons == ["it is no longer a primary: it refuses writes"] * 2
    proxy.stop()


def test_a_primary_that_is_demoted_behind_a_plain_address(server: Server, start_proxy: StartProxy) -> None:
    check_demoted(server, start_proxy)


# The other commands.


def test_check_events_and_import_take_the_address(one_watched: Watched, tmp_path: Path) -> None:
    watched = one_watched
    primary = watched.until_whole()
    findings = found(watched.url)
    assert findings["sentinels"].text == f"3 of 3 name 127.0.0.1:{primary.port} as the primary"
    assert findings["upstream"].text == f"redis://127.0.0.1:{primary.port} answers"
    assert findings["replication"].level is Level.WARNING
    assert "set min-replicas-to-write 1" in findings["replication"].text
    primary.command("CONFIG", "SET", "min-replicas-to-write", 1)
    assert found(watched.url)["replication"].level is Level.OK
    primary.command("CONFIG", "SET", "min-replicas-to-write", 0)
    nowhere = f"redis+sentinel://127.0.0.1:{free_port()}/{NAME}"
    findings = found(nowhere)
    assert findings["sentinels"].level is Level.FAILURE
    assert "connection refused" in findings["sentinels"].text
    assert "upstream" not in findings, "nothing is said of a server that nobody has named"
    assert events("set", "cart:*", "--stream", "expired", "--upstream", watched.url)[0] == 0
    assert "cart:*" in events("list", "--upstream", watched.url)[1]
    status, said = events("list", "--upstream", nowhere)
    assert status == 2
    assert "no Sentinel names the primary" in said
    dump = tmp_path / "dump.rdb"
    dump.write_bytes(recorded("none"))
    ended = bring("--rdb", dump, "--upstream", watched.url)
    assert ended.status == 0, ended.complained
    ended = bring("--rdb", dump, "--upstream", nowhere)
    assert (ended.status, "no Sentinel names the primary" in ended.complained) == (1, True)
