"""INFO has a section of the proxy's own, where Redis shows those of modules; all else in it is the server's."""

from __future__ import annotations

import re

import psutil
import pytest
import redis

from proxy import __version__
from proxy.metrics.info import section
from proxy.metrics.table import DECLARATIONS, Metrics
from tests.conftest import Both, StartProxy, StartServer
from tests.raw import request
from tests.servers import Proxy, Server, until

pytestmark = pytest.mark.every_kind


def text(reply: bytes) -> str:
    """The text of a bulk or verbatim string, which must be as long as it says."""
    head, _, rest = reply.partition(b"\r\n")
    assert head[:1] in (b"$", b"=")
    assert int(head[1:]) == len(rest) - 2
    return rest[:-2].decode().removeprefix("txt:")


def titles(reply: bytes) -> list[str]:
    found = text(reply)
    assert all(gap.count("\r\n") == 2 for gap in re.findall(r"[\r\n]*(?=# )", found)[1:] if gap)
    return re.findall(r"^# (\w+)\r$", found, re.MULTILINE)


def test_the_section_is_where_modules_have_theirs(both: Both, upstream: Server) -> None:
    straight, through = both
    assert titles(through.command("INFO", "expiremember")) == ["Expiremember"]
    for words in (["everything"], ["Modules"]):
        assert titles(through.command("INFO", *words)) == [*titles(straight.command("INFO", *words)), "Expiremember"]
    for words in ([], ["all"], ["default"], ["server"], ["nosuch"]):
        assert titles(through.command("INFO", *words)) == titles(straight.command("INFO", *words))
    several = straight.command("INFO", "keyspace", "cpu")
    if upstream.version < (7,):
        assert several.startswith(b"-ERR syntax error")
        assert through.command("INFO", "keyspace", "expiremember") == several
        return
    found = titles(through.command("INFO", "keyspace", "EXPIREMEMBER", "cpu", "expiremember"))
    assert found == [*titles(several), "Expiremember"]
    assert titles(through.command("INFO", "cpu", "everything"))[-1] == "Expiremember"


def test_it_tells_what_is_so(both: Both, upstream: Server) -> None:
    _, through = both
    assert through.command("SADD", "s", "m") == b":1\r\n"
    assert through.command("EXPIREMEMBER", "s", "m", 100) == b":1\r\n"

    def told() -> dict[str, str]:
        lines = text(through.command("INFO", "expiremember")).splitlines()[1:]
        return dict(line.split(":", 1) for line in lines)

    first = told()
    assert first["version"] == __version__
    assert int(first["process_id"]) > 0
    assert 0 <= int(first["uptime_in_seconds"]) < 3600
    assert first["upstream"] == upstream.url
    assert (first["upstream_up"], first["blind"], first["upstream_state"]) == ("1", "0", "reachable")
    assert int(first["covered_prefixes"]) >= 1
    assert first.keys() >= DECLARATIONS.keys() - {"build_info"}
    now = int(upstream.command("TIME").split(b"\r\n")[2])
    until(lambda: now < float(told()["next_deadline_timestamp_seconds"]) <= now + 110, what="the next deadline")


def test_redis_py_reads_it(proxy: Proxy) -> None:
    with redis.Redis(port=int(str(proxy.address[1]))) as client:  # type: ignore[index]
        for words in ("expiremember", "everything"):
            found = client.info(words)
            assert found["version"] == __version__
            assert found["request_hold_seconds"]["count"] >= 0


def test_within_a_transaction(both: Both) -> None:
    _, through = both
    through.send(b"".join(request(*line.split()) for line in ("MULTI", "INFO expiremember", "PING", "EXEC")))
    *queued, executed = through.replies(4)
    assert queued == [b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n"]
    assert executed.startswith(b"*2\r\n")
    assert titles(executed.removeprefix(b"*2\r\n").removesuffix(b"+PONG\r\n")) == ["Expiremember"]


def test_who_may_not_ask_is_told_so(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(kind)
    for name, rules in (("none", ["+@all", "-info"]), ("few", ["-@all", "+info"])):
        assert server.command("ACL", "SETUSER", name, "on", "nopass", "~x", *rules) == b"+OK\r\n"
    proxy = start_proxy(server)
    with proxy.connect() as client:
        assert client.command("AUTH", "none", "x") == b"+OK\r\n"
        assert client.command("INFO", "expiremember").startswith(b"-NOPERM")
        assert client.command("AUTH", "few", "x") == b"+OK\r\n"
        assert titles(client.command("INFO", "expiremember")) == ["Expiremember"]


def test_no_value_breaks_a_line() -> None:
    lines = section(Metrics({"upstream": "x"}), {"upstream": "unix:///a\r\n# Server\r\nb", "n": 1}).split(b"\r\n")
    assert lines[1:3] == [b"upstream:unix:///a??# Server??b", b"n:1"]
    assert all(re.fullmatch(rb"(# )?\w+(:.*)?", line) for line in lines[:-1])


@pytest.mark.one_kind
def test_a_pipeline_of_them_costs_one_a_turn(proxy: Proxy) -> None:
    """It is made of all metrics; a few KB of requests kept everybody else waiting for 0.2 s.

    Measured beside another request whose reply is amended: made for each request, it is the sixfold.
    """
    process = psutil.Process(proxy.pid)
    used = dict.fromkeys(("INFO modules", "COMMAND COUNT"), 0.0)
    with proxy.connect(60) as client:
        for line in ("INFO modules", "COMMAND COUNT") * 10:
            before = process.cpu_times().user
            client.send(request(*line.split()) * 800)
            assert len(client.replies(800)) == 800
            used[line] += process.cpu_times().user - before
        assert titles(client.command("INFO", "modules"))[-1] == "Expiremember"
    assert used["INFO modules"] < 2 * used["COMMAND COUNT"]
