"""`expiremember-proxy events`: what people set, see, and are told when it cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.check.needed import rules
from proxy.cli import command
from proxy.events.command import line, show
from proxy.events.rules import Rule, decode
from proxy.events.store import Store, StoreError
from proxy.scripts.naming import Names
from proxy.settings import Settings
from proxy.upstream.endpoint import Upstream
from tests.conftest import Start, StartProxy, StartServer
from tests.pages import page
from tests.relay import Relay
from tests.servers import ROOT, Process, Proxy, Server, free_port, proxy_environment, until
from tests.test_docs import at, folder, one_kind, port_of, shell
from tests.test_events import entries, talk, want
from tests.test_import import bring
from tests.test_lives import Talk

__all__ = ["folder", "talk"]  # fixtures

START = "start it first, or set listen to where it runs"
NAMES = Names(b"__expiremember__:")
Connect = Callable[..., Talk]


def events(*arguments: str) -> tuple[int, str]:
    """Run it in this process; return its status and all that it says."""
    variables = dict.fromkeys(name for name in os.environ if name.upper().startswith("EXPIREMEMBER_"))
    ended = CliRunner().invoke(command(), ["events", *arguments], env=variables)
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.output


def kept(beside: Talk) -> set[Rule | None]:
    return set(map(decode, beside("ZRANGEBYSCORE", NAMES.events, "-inf", "+inf")))


def test_a_rule_is_set_replaced_listed_and_removed(upstream: Server, proxy: Proxy, talk: Connect) -> None:
    at = "--upstream", f"{upstream.url}/3"
    assert events("list", *at) == (0, "no rules\n")
    status, said = events("set", "cart:*", "--stream", "expired", "--value", *at)
    assert (status, said.split(":")[0]) == (0, "set")
    assert "about 1,000,000 entries kept, read or not" in said
    status, said = events("set", "cart:*", "--stream", "gone", "--maxlen", "0", "--publish", "tS", *at)
    assert (status, said.split(":")[0]) == (0, "replaced")
    assert events("set", "cart:?", "--publish", "i", "--upstream", upstream.url)[0] == 0
    assert kept(talk(upstream, 3)) == {Rule(b"cart:*", b"gone", maxlen=0, letters="ST", database=3)}
    assert kept(talk(upstream)) == {Rule(b"cart:?", letters="I")}
    client = talk(proxy, 3)
    client("SADD", "cart:1", "a")
    client("PEXPIREMEMBER", "cart:1", "a", 50)
    until(lambda: entries(talk(upstream, 3), "gone"), what="an entry")
    rows = [row.split() for row in events("list", *at)[1].splitlines()]
    assert rows == [
        ["database", "pattern", "stream", "entries", "kept", "list", "elements", "value", "publish"],
        ["0", "cart:?", "-", "-", "-", "-", "-", "no", "I"],
        ["3", "cart:*", "gone", "1", "all", "-", "-", "no", "ST"],
    ]
    assert events("remove", "cart:*", *at)[0] == 0
    assert events("remove", "cart:*", *at) == (
        1, "expiremember-proxy: events: no rule for cart:* in database 3; see events list\n",
    )  # fmt: skip
    assert kept(talk(upstream, 3)) == set()


def test_what_stands_in_the_way_is_said(upstream: Server, talk: Connect) -> None:
    beside = talk(upstream)
    at = "--upstream", upstream.url
    beside("SET", "taken", "v")
    assert "taken is a string already" in events("set", "*", "--stream", "taken", *at)[1]
    want(beside, Rule(b"*", b"taken"))
    beside("ZADD", NAMES.events, 0, "nonsense")
    said = events("list", *at)[1]
    assert "NOT A STREAM" in said
    assert "not a rule" in said
    assert "DB index is out of range" in events("set", "*", "--stream", "s", "--upstream", f"{upstream.url}/99")[1]
    beside("DEL", NAMES.events)
    for number in range(64):
        want(beside, Rule(b"%d" % number, b"s"))
    status, said = events("set", "one more", "--stream", "s", *at)
    assert status == 2
    assert "64 rules already" in said
    assert events("set", "7", "--stream", "t", *at)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set", "*"], "say what to do"), (["set", "*", "--publish", "X"], "STIV"),
        (["set", "{a}:*", "--stream", "s"], "{a}:expired"), (["set"], "PATTERN"),
        (["set", "*", "--maxlen", "-1"], "maxlen"),
        (["set", "*", "--stream", "__expiremember__:x"], "reserved"), (["tail"], "STREAM"),
        (["list", "--embedded"], "embedded"), (["nonsense"], "nonsense"),
    ],
)  # fmt: skip
def test_bad_usage_ends_with_status_2(arguments: list[str], said: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "proxy", "events", *arguments], env=proxy_environment(), cwd=ROOT, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert said in run.stderr
    assert run.stderr.count("\n") == 1


def test_nobody_listens() -> None:
    for arguments in (["list"], ["tail", "s"], ["set", "*", "--stream", "s"], ["remove", "*"]):
        status, said = events(*arguments, "--upstream", f"redis://127.0.0.1:{free_port()}")
        assert status == 2
        assert re.fullmatch(r"expiremember-proxy: events: redis://127.0.0.1:\d+: .+ the server runs\n", said), said


def test_the_rights_of_the_proxys_own_user_are_enough(upstream: Server, talk: Connect) -> None:
    upstream.command("ACL", "SETUSER", "own", "on", ">pw", "resetchannels", *rules("__expiremember__:"))
    at = "--upstream", upstream.url.replace("//", "//own:pw@")
    assert events("set", "*", "--stream", "expired", "--publish", "S", *at)[0] == 0
    talk(upstream)("XADD", "expired", "*", "f", "v")
    status, said = events("list", *at)
    assert (status, said.splitlines()[-1].split()[3]) == (0, "?")
    assert events("remove", "*", *at)[0] == 0
    status, said = events("tail", "expired", *at)
    assert status == 2
    assert "+xread" in said


# A person's view.


class Says:
    """A connection to something that gives one reply to whatever it is asked."""

    def __init__(self, reply: object) -> None:
        self.reply = reply

    async def send_command(self, *words: object) -> None:
        """Send nothing."""

    async def read_response(self) -> object:
        return self.reply


@pytest.mark.parametrize(
    "reply", [None, 7, 1.5, b"", b"x", b"\xff", b"zset", b"db0:x\r\ndb\r\n", [], [b"1-1"], [[b"1-1"]], [[b"1-1", 5]],
              [[b"1-1", [b"f"]]], [[b"s", [[b"1-1", None]]]], {b"a": b"b"}, {b"a"}, True],
)  # fmt: skip
def test_replies_of_what_is_no_server_are_told_in_one_line(reply: object) -> None:
    store = Store(Upstream(Settings(), "redis://here"), Names(b"p:"), Says(reply))

    async def ask_all() -> None:
        for ask in (
            store.rules,
            lambda: store.put(Rule(b"p*", b"s", list=b"l")),
            lambda: store.remove(0, b"p*"),
            lambda: store.is_there(b"k"),
            lambda: store.last(b"s", 3),
            lambda: store.after(b"s", b"0-0"),
        ):
            with contextlib.suppress(StoreError):
                await ask()

    asyncio.run(ask_all())


def test_a_line_tells_key_member_value_and_how_late() -> None:
    entry = {b"key": b"cart:7", b"type": b"hash", b"member": b"a b", b"deadline": b"1000", b"value": b"\x1b[31m"}
    assert line(b"1003-0", entry) == "1970-01-01 00:00:01.003  cart:7  a b  value='\\x1b[31m'  late 3 ms"
    entry = {b"key": "ключ".encode(), b"type": b"list", b"member": b"\xff", b"deadline": b"1000", b"count": b"2"}
    assert line(b"2000-1", entry) == "1970-01-01 00:00:02.000  ключ  \\xff  count=2  late 1000 ms"
    assert line(b"2000-1", {b"other": b"entry\n"}) == "1970-01-01 00:00:02.000  other='entry\\n'"
    assert line(b"99999999999999999-0", {}).startswith("99999999999999999-0")
    assert show(b"x" * 100) == "x" * 59 + "…"


def test_a_stream_is_followed(server: Server, start: Start, talk: Connect) -> None:
    beside, client = talk(server), talk(start())
    want(beside, Rule(b"*", b"expired", value=True))
    for number in range(12):
        beside("XADD", "expired", "*", "key", f"k{number}", "member", "m", "deadline", 1)
    said = events("tail", "expired", "--count", "2", "--upstream", server.url)
    assert [row.split()[2] for row in said[1].splitlines()] == ["k10", "k11"]
    follower = Process(
        [sys.executable, "-m", "proxy", "events", "tail", "expired", "--follow", "--upstream", server.url],
        proxy_environment(),
    )
    try:
        follower.line(lambda row: "k11" in row)
        client("HSET", "cart:7", "apple", "2 kg")
        client("PEXPIREMEMBER", "cart:7", "apple", 50)
        row = follower.line(lambda row: "cart:7" in row)
        found = re.search(r"cart:7  apple  value=2 kg  late (\d+) ms$", row)
        assert found, row
        assert int(found[1]) < 5000
        server.stop()
        assert follower.wait() == 2
        assert "Traceback" not in follower.output
    finally:
        follower.kill()


@one_kind
def test_a_stream_that_does_not_exist_is_said(upstream: Server, talk: Connect) -> None:
    at = f"{upstream.url}/3"
    missing = "expiremember-proxy: events: there is no stream nowhere in database 3"
    status, said = events("tail", "nowhere", "--upstream", at)
    assert (status, said.startswith(missing), said.count("\n")) == (1, True, 1), said
    beside = talk(upstream, 3)
    beside("XADD", "emptied", 1, "a", "b")
    beside("XTRIM", "emptied", "MAXLEN", 0)
    assert events("tail", "emptied", "--upstream", at) == (0, "")
    follower = Process(
        [sys.executable, "-m", "proxy", "events", "tail", "nowhere", "--follow", "--upstream", at], proxy_environment()
    )
    try:
        assert follower.line(lambda row: row.startswith(missing)).endswith("; waiting for it")
        beside("XADD", "nowhere", "*", "other", "entry")
        follower.line(lambda row: row.endswith("other=entry"))
    finally:
        follower.kill()


@one_kind
def test_the_commands_of_the_page_do_what_it_says(folder: Path, proxy: Proxy, upstream: Server) -> None:
    block, *_ = page("docs/events.md").blocks
    done = shell(at(block.text, port_of(proxy), upstream.port), folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\S+ \S+  order:7  apple  value=2 kg  late \d+ ms$", done.stdout, re.M), done.stdout


def url_of(proxy: Proxy, login: str = "") -> str:
    return f"redis://{login}127.0.0.1:{port_of(proxy)}"


def test_the_address_of_a_proxy_means_the_server_behind_it(upstream: Server, proxy: Proxy, talk: Connect) -> None:
    at = "--upstream", f"{url_of(proxy)}/3"
    assert events("set", "cart:*", "--stream", "expired", *at)[0] == 0
    assert kept(talk(upstream, 3)) == {Rule(b"cart:*", b"expired", database=3)}
    assert "cart:*" in events("list", *at)[1]
    client = talk(proxy, 3)
    client("SADD", "cart:1", "a")
    client("PEXPIREMEMBER", "cart:1", "a", 50)
    until(lambda: "cart:1  a" in events("tail", "expired", *at)[1], what="an entry")
    assert events("remove", "cart:*", *at)[0] == 0


def test_the_login_is_the_servers_too(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(kind, "--requirepass", "the-right-one")
    proxy = start_proxy(None, "--upstream", server.url.replace("//", "//:the-right-one@"))
    status, said = events("list", "--upstream", url_of(proxy, ":the-right-one@"))
    assert (status, said.splitlines()[-1]) == (0, "no rules")
    status, said = events("list", "--upstream", url_of(proxy, ":the-wrong-one@"))
    assert status == 2
    assert "check user and password" in said.splitlines()[-1]
    assert "the-wrong-one" not in said


def both(*where: str) -> Iterator[str]:
    """What two commands say that look for the server."""
    status, said = events("list", *where)
    assert status == 2
    yield said
    ended = bring("--rdb", "/dev/null", *where)
    assert ended.status == 1
    yield ended.complained


def test_a_server_behind_that_cannot_be_reached_is_named(upstream: Server, proxy: Proxy) -> None:
    """As where the proxy runs in a container, and this does not."""
    elsewhere = upstream.url.replace("127.0.0.1", "127.0.0.9")  # of the same length
    with Relay(proxy.address) as way:
        way.answers = lambda data: data.replace(upstream.url.encode(), elsewhere.encode())
        for said in both("--upstream", way.url):
            assert f"{elsewhere} (behind {way.url}): " in said


def test_a_proxy_without_a_server_is_told_in_one_line(start_proxy: StartProxy) -> None:
    proxy = start_proxy(None, "--upstream", f"redis://127.0.0.1:{free_port()}")
    told = "it is an expiremember-proxy itself; set upstream to the Redis or Valkey server behind it"
    for said in both("--upstream", url_of(proxy)):
        assert said.endswith(f"{url_of(proxy)}: {told}\n")


@pytest.mark.start
def test_an_embedded_server_is_found_through_its_proxy(start_proxy: StartProxy, tmp_path: Path) -> None:
    proxy = start_proxy(None, "--embedded")
    listen = f"127.0.0.1:{port_of(proxy)}"
    config = tmp_path / "proxy.toml"
    config.write_text(f'embedded = true\nlisten = ["{listen}"]\n')
    for where in (["--upstream", url_of(proxy)], ["--config", str(config)]):
        assert events("set", "cart:*", "--stream", "expired", *where)[0] == 0
        assert "cart:*" in events("list", *where)[1]
        assert events("remove", "cart:*", *where)[0] == 0
    rdb = tmp_path / "dump.rdb"
    rdb.write_bytes(gzip.decompress((ROOT / "tests" / "data" / "keydb" / "types.rdb.gz").read_bytes()))
    for where in (["--upstream", url_of(proxy)], ["--config", str(config)]):
        assert bring("--rdb", rdb, "--dry-run", *where).said.count("dry run, nothing changed: ") == 1
    proxy.stop()
    ended = bring("--rdb", rdb, "--config", str(config))
    assert ended.status == 2
    assert ended.complained == f"expiremember-proxy: embedded: no proxy answers at {listen}; {START}\n"
