"""The status page of real proxies, in a real browser: what it shows, what it asks for, and what it costs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from proxy.events.rules import Rule
from proxy.metrics.table import Metrics
from proxy.scripts.naming import Names
from proxy.status.judge import judge
from proxy.status.look import SAMPLED, SIZED
from proxy.status.names import LONGEST, shown
from proxy.status.report import COUNTERS, DELAY_BOUNDS, SAMPLES, History, Report, quantile, report_of
from proxy.status.shape import Status, Upstream
from proxy.status.status import FRESH_SECONDS, WAIT_SECONDS
from proxy.status.view import sections
from proxy.status.words import duration, number
from tests.admin import Admin, admin_of, with_admin
from tests.browser import Browser
from tests.conftest import Start, StartProxy, StartServer
from tests.raw import Raw, request
from tests.servers import KIND, Proxy, Server, halt, until
from tools import status_schema

pytestmark = pytest.mark.one_kind

NAMES = Names(b"__expiremember__:")
HOSTILE = b"<img src=x onerror=alert(1)>:</script><b>\xe2\x80\xae\x00&amp;'\""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Where pictures go: to the folder that SCREENSHOTS names, for people."""
    return Path(os.environ.get("SCREENSHOTS") or tmp_path)


def figures(port: Admin) -> Status:
    """What /status.json says; it has the shape of the schema and nothing else."""
    status, body = port.ask("/status.json")
    assert status == 200
    return Status.model_validate_json(body)


def url_of(port: Admin) -> str:
    assert not isinstance(port.address, Path)
    return f"http://{port.address[0]}:{port.address[1]}/"


@pytest.fixture(scope="module")
def busy() -> Iterator[tuple[Server, Proxy, Admin]]:
    """A server with 100,000 keys that have deadlines, hostile names among them, and members that expire now."""
    with ExitStack() as stack:
        server = Server(KIND)
        stack.callback(server.close)
        proxy = Proxy("--upstream", server.url, "--admin", "127.0.0.1:0", "--admin-names", "--leftovers-rate", "0")
        stack.callback(proxy.close)
        with proxy.connect() as client:
            for key in (b"cart:0", b"session:0", HOSTILE):
                for member in range(3):
                    client.command("SADD", key, member)
                    assert client.command("EXPIREMEMBER", key, member, 100_000) == b":1\r\n"
            many(server, "cart:", 70_000, 1_800_000)
            many(server, "session:", 30_000, 30_000_000)
            rule = b"1000000 0 0 - %d:%b%b" % (len(HOSTILE), HOSTILE, b"expired")
            pushed = Rule(b"jobs:*", list=b"ready", letters="S").encode()
            assert server.command("ZADD", NAMES.events, 0, rule, 0, pushed) == b":2\r\n"
            end = time.monotonic() + (60 if "SCREENSHOTS" in os.environ else 1)
            while time.monotonic() < end:
                client.send(b"".join(request("SADD", f"cart:x{n}", "a") for n in range(20)))
                client.send(b"".join(request("PEXPIREMEMBER", f"cart:x{n}", "a", 100) for n in range(20)))
                client.replies(40)
                time.sleep(0.1)
        yield server, proxy, admin_of(proxy)


def many(server: Server, prefix: str, count: int, ms: int) -> None:
    """Put keys with deadlines into a server, as a proxy would have."""
    script = """
      local time = redis.call('TIME')
      for n = 1, ARGV[2] do
        local key, deadline = ARGV[1] .. n, time[1] * 1000 + ARGV[3] + n
        redis.call('SADD', key, 'a', 'b')
        redis.call('ZADD', KEYS[1] .. 'k:{' .. key .. '}', deadline, 'a')
        redis.call('ZADD', KEYS[1] .. 'index', deadline, key)
      end"""
    assert server.command("EVAL", script, 1, NAMES.prefix, prefix, count, ms) == b"$-1\r\n"


# What it costs.


PAGES_OWN = {
    b'"INFO" "server"': 3,  # and what goes with it
    b"'zcount'": 1,
    b"local keys, whole = ": 1,
    b"local found, selected, fails = ": 1,
}
"""What the server gets for the page alone, and how many requests that stands for."""


def asked_of(server: Server, seconds: float) -> int:
    """How many requests the server gets for the page."""
    with server.connect() as monitor:
        assert monitor.command("MONITOR") == b"+OK\r\n"
        end = time.monotonic() + seconds
        monitor.socket.settimeout(0.1)
        data = b""
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                data += monitor.socket.recv(1 << 16)
    lines = [line for line in data.splitlines() if b" lua] " not in line]
    return sum(count for line in lines for text, count in PAGES_OWN.items() if text in line)


def test_the_server_is_asked_little_however_many_look(busy: tuple[Server, Proxy, Admin]) -> None:
    check_the_server_is_asked_little(busy[0], busy[2])


def check_the_server_is_asked_little(server: Server, port: Admin) -> None:
    """Many look at once, without a pause; then nobody does."""
    until(lambda: figures(port).upstream.asked)
    end = threading.Event()

    def look() -> None:
        while not end.is_set():
            figures(port)
            end.wait(0.02)

    threads = [threading.Thread(target=look, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        watched = asked_of(server, 3)
    finally:
        end.set()
        for thread in threads:
            thread.join(20)
    assert 4 <= watched <= 3 * 5
    time.sleep(0.2)
    assert asked_of(server, 1.6) == 0


@pytest.mark.measures
def test_requests_cost_the_same_while_the_page_is_open(busy: tuple[Server, Proxy, Admin]) -> None:
    _, proxy, port = busy

    def spent() -> int:
        """How many ns of a processor's time its threads have had."""
        tasks = Path(f"/proc/{proxy.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)

    def cost(client: Raw) -> float:
        began = spent()
        for _ in range(800):
            client.command("GET", "plain")
        return spent() - began

    end, is_open = threading.Event(), threading.Event()

    def look() -> None:
        while not end.is_set():
            if is_open.wait(0.1):
                figures(port)
                end.wait(0.5)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    ratios = []  # of neighbours: the machine is not equally fast all the time
    try:
        with proxy.connect() as client:
            cost(client)
            for _ in range(21):
                is_open.clear()
                closed = cost(client)
                is_open.set()
                ratios.append(cost(client) / closed)
    finally:
        end.set()
        thread.join(20)
    ratio = statistics.median(ratios)
    print(f"CPU a request with the page open: {ratio:.3f} of what it is without")
    assert ratio < 1.15


# What it shows, in a browser.


@pytest.mark.parametrize(
    ("name", "dark", "width"), [("light", False, 1280), ("dark", True, 1280), ("narrow", False, 390)]
)
def test_the_page_of_a_busy_proxy(
    browser: Browser, busy: tuple[Server, Proxy, Admin], shots: Path, name: str, dark: bool, width: int
) -> None:
    server, _, port = busy
    with browser.tab(url_of(port), dark=dark, width=width) as tab:
        tab.until("document.querySelectorAll('svg path').length >= 3")
        text = tab.text()
        tab.screenshot(shots / f"{name}.png")
        assert text.startswith("Good: clients are served, and members are removed on time.")
        for shown_ in (server.url, "Redis 7.0.15", "primary, 0 replicas", "cart:", "session:", "In the next hour"):
            assert shown_ in text, text
        assert re.search(r"In the next hour\s+70,0\d\d\s+In the next day\s+100,0\d\d", text), text
        assert "Each line includes those above." in text
        assert re.search(r"jobs:\*\s+0\s+list ready, messages S\b", text), text
        # As it is, nothing of it as HTML, and what turns the direction of text as an escape.
        assert "<img src=x onerror=alert(1)>:</script><b>\\u202e\\x00&amp;'\"" in text
        assert tab.value("document.querySelectorAll('img, b').length") == 0
        assert tab.value("document.documentElement.scrollWidth <= innerWidth")
        ground = tab.value("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(22, 23, 22)") == dark
        if name == "light":
            tab.until(f"!document.querySelector('.meta').textContent.endsWith({text.splitlines()[2][-8:]!r})")
        assert {url for url in tab.asked_for() if not url.startswith("data:")} <= {
            url_of(port),
            url_of(port) + "status.json",
        }
        assert tab.complaints() == []


def test_it_is_a_table_without_javascript(browser: Browser, busy: tuple[Server, Proxy, Admin], shots: Path) -> None:
    _, _, port = busy
    with browser.tab(url_of(port)) as tab:
        shown_ = tab.text()
    with browser.tab(url_of(port), scripts=False) as tab:
        tab.screenshot(shots / "without-javascript.png")
    body = port.ask("/")[1]
    page = re.sub(r"<script.*", "", body.partition("<main")[2], flags=re.DOTALL)
    assert "onerror=alert(1)&gt;" in page
    rows = dict(re.findall(r"<th scope=\"row\"><bdi>([^<]*)</bdi></th><td[^>]*><bdi>([^<]*)</bdi>", page))
    for row in ("In the next hour", "All with deadlines", "Server", "Version", "Role", "Other proxies here"):
        assert re.search(rf"{row}\s+{re.escape(rows[row])}\n", shown_), (row, rows[row], shown_)


def test_an_empty_server(browser: Browser, server: Server, start_proxy: StartProxy, shots: Path) -> None:
    _, port = with_admin(start_proxy, server)
    until(lambda: port.ask("/readyz")[0] == 200)
    with browser.tab(url_of(port)) as tab:
        tab.until("document.body.innerText.includes('All with deadlines')")
        tab.screenshot(shots / "empty.png")
        text = tab.text()
        assert "None yet: no member has been given a deadline." in text
        assert re.search(r"All with deadlines\s+0\n", text)
        assert tab.complaints() == []
    assert figures(port).due is not None


def test_while_the_server_is_gone(
    browser: Browser, start_server: StartServer, start_proxy: StartProxy, shots: Path
) -> None:
    upstream = start_server(KIND)
    proxy, port = with_admin(start_proxy, upstream, "--control-timeout", "1")
    with proxy.connect() as client:
        client.command("SADD", "cart:1", "a")
        client.command("EXPIREMEMBER", "cart:1", "a", 1000)
    assert until(lambda: figures(port).due, what="a look").keys == 1  # type: ignore[union-attr]
    with browser.tab(url_of(port)) as tab:
        process, upstream.process = upstream.process, None
        assert process is not None
        process.kill()
        tab.until("document.querySelector('.bad') !== null")
        tab.screenshot(shots / "gone.png")
        text = tab.text()
        assert f"Upstream {upstream.url} is unavailable" in text
        assert "Check that the server runs" in text
        assert re.search(r"All with deadlines\s+1\n", text), "what was known last"
        began = time.monotonic()
        assert port.ask("/")[0] == 200
        assert time.monotonic() - began < 5
        upstream.start()
        tab.until("document.querySelector('.good') !== null")
        assert figures(port).prefixes.listed[0].keys == 0, "the server is empty now"
        assert tab.complaints() == []
        proxy.stop()
        tab.until("document.body.innerText.startsWith('No answer from the proxy since')")
        tab.screenshot(shots / "no-proxy.png")


# What it tells, and whom.


def test_before_the_server_has_ever_answered(start_proxy: StartProxy) -> None:
    _, port = with_admin(start_proxy, None, "--upstream", "unix:///no/such/" + os.fsdecode(b"\xff"))
    status = figures(port)
    assert (status.state.level, status.due, status.upstream.asked) == ("bad", None, None)
    assert "udcff" in status.upstream.address
    assert status.state.text in port.ask("/")[1].replace("&#x27;", "'")


@pytest.mark.measures
def test_a_server_that_stands_still_is_waited_for_once(server: Server, start_proxy: StartProxy) -> None:
    _, port = with_admin(start_proxy, server)
    until(lambda: figures(port).upstream.asked)
    assert server.process is not None
    halt(server.process.pid)
    try:
        told, took = "", 0.0
        while "has not answered within a second" not in told:
            began = time.monotonic()
            told = figures(port).state.text
            took = time.monotonic() - began
            assert took < WAIT_SECONDS + 1
        assert took > WAIT_SECONDS / 2, "it has been waited for"
        time.sleep(FRESH_SECONDS)
        began = time.monotonic()
        assert figures(port).state.level == "warning"
        assert time.monotonic() - began < 0.8
    finally:
        server.process.send_signal(signal.SIGCONT)
    until(lambda: figures(port).state.level == "good")


def test_names_are_shown_only_where_that_is_wanted(server: Server, start: Start) -> None:
    proxy = start("--admin", "127.0.0.1:0")
    with proxy.connect() as client:
        for key in (b"secret:1", HOSTILE, b"7"):
            client.command("SADD", key, "member")
            client.command("EXPIREMEMBER", key, "member", 1000)
    server.command("ZADD", NAMES.events, 0, b"10 1 0 X- 8:secret:*secrets")
    port = admin_of(proxy)
    status = until(lambda: (told := figures(port)).prefixes.count == 3 and told.due and told, what="a look")
    assert isinstance(status, Status)
    assert sorted(prefix.keys or 0 for prefix in status.prefixes.listed) == [1, 1, 1]
    assert status.prefixes.exact
    assert status.rules is not None
    assert (status.rules.count, status.rules.listed[0].pattern, status.rules.listed[0].maxlen) == (1, None, 10)
    assert status.biggest is None
    unnamed = [row for part in sections(status) for row in part.rows if "--admin-names" in row[0]]
    assert unnamed == [("3 names not shown: see --admin-names",), ("1 name not shown: see --admin-names",)]
    for path in ("/", "/status.json"):
        told = port.ask(path)[1]
        assert "name not shown<" not in told
        assert "secret" not in told
        assert "onerror" not in told
        assert "member" not in told.replace("expiremember", "").replace("members", "").replace("no member has", "")
    again = figures(admin_of(start("--admin", "127.0.0.1:0", "--admin-names")))
    assert {prefix.name for prefix in again.prefixes.listed} == {"secret:", shown(HOSTILE[:-14]), "7"} or again


def test_hostile_names_are_text(start: Start) -> None:
    proxy = start("--admin", "127.0.0.1:0", "--admin-names")
    with proxy.connect() as client:
        client.command("SADD", HOSTILE, "a")
        assert client.command("EXPIREMEMBER", HOSTILE, "a", 1000) == b":1\r\n"
    port = admin_of(proxy)
    until(lambda: figures(port).biggest and figures(port).prefixes.count)
    page = port.ask("/")[1]
    assert page.count("onerror=alert(1)") >= 4, "as rows and as data"
    for text in ("<img", "</script><b>", "\u202e", "\0"):
        assert text not in page
    assert len(re.findall("<script", page)) == len(re.findall("</script", page)) == 2


def test_it_can_be_turned_off(server: Server, start_proxy: StartProxy) -> None:
    _, port = with_admin(start_proxy, server, "--no-admin-page")
    for path in ("/", "/status.json"):
        assert port.ask(path) == (404, "the status page is turned off: see the setting admin_page\n")
    assert port.ask("/livez")[0] == 200


def test_it_forbids_all_that_is_not_its_own(server: Server, start_proxy: StartProxy) -> None:
    _, port = with_admin(start_proxy, server)
    with port.conversation() as connection:
        connection.request("GET", "/")
        answer = connection.getresponse()
        page = answer.read().decode()
        policy = answer.getheader("Content-Security-Policy") or ""
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
        for method, path in (("HEAD", "/"), ("HEAD", "/status.json")):
            connection.request(method, path)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"")
            assert int(answer.getheader("Content-Length") or 0) > 500
    assert not re.search(r"https?://(?!www\.w3\.org/)", page.replace("https://json-schema.org", ""))
    assert " style=" not in page
    assert " on" + "click" not in page


def test_all_workers_are_told_of(server: Server, start_proxy: StartProxy) -> None:
    proxy, port = with_admin(start_proxy, server, "--workers", "2")
    other = start_proxy(server)
    with ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in range(4)]
        for client in clients:
            client.command("PING")

        def told() -> bool:
            status = figures(port)
            return status.proxies.others == 1 and [one.clients for one in status.proxies.workers] == [2, 2]

        until(told, what="both workers and the other proxy")
        other.stop()  # else it might be the one that removes
        clients[0].command("SADD", "cart:1", "a")
        clients[0].command("PEXPIREMEMBER", "cart:1", "a", 20)
        until(lambda: figures(port).removals.removed == 1, 15, "a sample from before and one removal")
    worker = psutil.Process(proxy.pid).children()[1]
    worker.suspend()
    try:
        until(lambda: not all(one.answers for one in figures(port).proxies.workers), what="a worker that is missed")
        began = time.monotonic()
        assert figures(port).state.text
        assert time.monotonic() - began < 5
    finally:
        worker.resume()


def test_a_user_who_may_not_count_is_told_so(server: Server, start_proxy: StartProxy) -> None:
    server.command("ACL", "SETUSER", "few", "on", ">pw", "~*", "&*", "+@all", "-zcount")
    _, port = with_admin(start_proxy, None, "--upstream", server.url.replace("//", "//few:pw@"))
    with Raw(server.address) as client:
        client.command("ZADD", NAMES.index, 1, "a")
    status = until(lambda: (told := figures(port)).upstream.asked and told)
    assert isinstance(status, Status)
    assert status.due is None
    assert status.due_trouble == "the proxy's own user may not count them: grant +zcount"
    assert "pw" not in status.upstream.address


def test_a_cluster_node_says_why_it_does_not_count(start_server: StartServer, start_proxy: StartProxy) -> None:
    node = start_server(KIND, "--cluster-enabled", "yes")
    assert node.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383) == b"+OK\r\n"
    until(lambda: b"cluster_state:ok" in node.command("CLUSTER", "INFO"))
    _, port = with_admin(start_proxy, node, "--admin-names")
    status = until(lambda: (told := figures(port)).upstream.asked and told.upstream.slots and told)
    assert isinstance(status, Status)
    assert (status.due, status.rules, status.biggest) == (None, None, None)
    assert "an index for each slot" in (status.due_trouble or "")
    assert status.upstream.mode == "cluster"


def test_keys_are_counted_by_their_earliest_deadline(server: Server, start: Start) -> None:
    proxy = start("--admin", "127.0.0.1:0", "--admin-names")
    with proxy.connect() as client:
        for database, seconds in ((0, 30), (0, 1800), (3, 1801), (3, 40_000), (0, 900_000)):
            client.command("SELECT", database)
            client.command("SADD", f"k:{seconds}", "a", "b", "c")
            for member, more in (("a", 0), ("b", 100), ("c", 200)):
                assert client.command("EXPIREMEMBER", f"k:{seconds}", member, seconds + more) == b":1\r\n"
    port = admin_of(proxy)
    status = until(lambda: (told := figures(port)).due is not None and told.due.keys == 5 and told, 15)
    assert isinstance(status, Status)
    assert status.due is not None
    assert (status.due.overdue, status.due.minute, status.due.hour, status.due.day) == (0, 1, 3, 4)
    assert status.biggest is not None
    assert status.biggest.whole
    assert {(key.name, key.database, key.deadlines) for key in status.biggest.listed} == {
        ("k:30", 0, 3), ("k:1800", 0, 3), ("k:1801", 3, 3), ("k:40000", 3, 3), ("k:900000", 0, 3),
    }  # fmt: skip
    assert [(prefix.name, prefix.keys) for prefix in status.prefixes.listed] == [("k:", 5)]


@pytest.mark.parametrize("label", ["redis-6.2", "valkey-8.0"])
def test_each_kind_of_server_is_known(start_server: StartServer, start_proxy: StartProxy, label: str) -> None:
    server = start_server(label)
    proxy, port = with_admin(start_proxy, server)
    with proxy.connect() as client:
        client.command("SADD", "cart:1", "a")
        assert client.command("EXPIREMEMBER", "cart:1", "a", 1000) == b":1\r\n"
    status = until(lambda: (told := figures(port)).due is not None and told.due.keys and told)
    assert isinstance(status, Status)
    version = ".".join(map(str, server.version))
    assert f"{status.upstream.product} {status.upstream.version}" == f"{label.partition('-')[0].capitalize()} {version}"
    assert (status.upstream.role, status.upstream.mode, status.upstream.replicas) == ("primary", "standalone", 0)


def test_a_sample_says_that_it_is_one(busy: tuple[Server, Proxy, Admin]) -> None:
    status = figures(busy[2])
    assert status.biggest is not None
    assert not status.biggest.whole
    assert status.biggest.sampled <= SIZED
    assert not status.prefixes.exact
    assert status.prefixes.sampled is not None
    assert SAMPLED / 2 <= status.prefixes.sampled <= 2 * SAMPLED
    found = {prefix.name: prefix.keys or 0 for prefix in status.prefixes.listed}
    assert 55_000 < found["cart:"] < 85_000
    assert 15_000 < found["session:"] < 45_000
    assert found["cart:"] % 1000 == 0, "an estimate to two digits"


# Its parts.


def test_the_schema_is_up_to_date() -> None:
    assert status_schema.PATH.read_text("utf-8") == status_schema.text(), "run python -m tools.status_schema"


def test_the_history_is_bounded_and_small() -> None:
    history, metrics = History(0.0), Metrics()
    for second in range(5, 5000, 5):
        metrics.members_expired_total["sweep"] += 10
        metrics.removal_delay_seconds.observe(0.003)
        history.add(float(second), {1: report_of(metrics)})
    points = history.points
    assert len(points) == SAMPLES - 1
    assert {point.removed for point in points} == {2.0}
    assert (points[0].moment, points[-1].moment) == (4100.0, 4995.0)
    assert points[0].median == pytest.approx(0.00375)
    whole = history.whole(5000.0, {})
    assert whole is not None
    assert (whole.count("removed"), whole.seconds) == (1800, 905.0)
    assert sum(sample.itemsize * len(sample) for _, sample in history._samples) < 50_000


def test_a_worker_that_is_silent_for_once_spoils_no_figure() -> None:
    history = History(-5.0)
    for second, of_second in ((0, 100), (5, None), (10, 120)):
        reports = {1: report(removed=10 * second), 2: None if of_second is None else report(removed=of_second)}
        history.add(float(second), reports)
    assert [point.removed for point in history.points] == [20.0, 10.0, 14.0]


def report(removed: int) -> Report:
    told = report_of(Metrics())
    told.counts[COUNTERS.index("removed")] = removed
    return told


def test_quantiles() -> None:
    bounds = DELAY_BOUNDS
    assert quantile(0.5, [0] * (len(bounds) + 1)) is None
    assert quantile(1.0, [*[0] * len(bounds), 1]) == bounds[-1]
    assert quantile(0.5, [2, *[0] * len(bounds)]) == pytest.approx(bounds[0] / 2)
    assert quantile(0.99, [99, 1, *[0] * (len(bounds) - 1)]) == pytest.approx(bounds[0])


def test_names_are_shown_as_visible_text() -> None:
    assert shown(b"cart:7") == "cart:7"
    assert shown("größer".encode()) == "größer"
    assert shown(b"\xff\n\t\x1b[31m") == "\\xff\\n\\t\\x1b[31m"
    assert shown("a\u202eb\u200b".encode()) == "a\\u202eb\\u200b"
    assert len(shown(b"x" * 5000)) == LONGEST


def test_numbers_as_people_read_them() -> None:
    assert [number(value) for value in (None, 0, 3.0, 3.14, 12.5, 70_002)] == ["—", "0", "3", "3.1", "12", "70,002"]
    told = [duration(value) for value in (None, 0.00025, 0.012, 0.9999, 3.2, 45, 90, 7200, 200_000)]
    assert told == ["—", "0.2 ms", "12 ms", "1.0 s", "3.2 s", "45 s", "1.5 min", "2.0 h", "2.3 d"]


UPSTREAM = Upstream(
    address="redis://h:1", reachable=True, product="Redis", version="7", role="primary", mode="standalone", replicas=0,
    commands=1.0, slots=0, sentinels=0, clock_offset=0.0, next_deadline=None, asked=1.0, trouble=None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "told", "level", "text"),
    [
        ({}, {}, "good", "Good: "),
        ({}, {"hung": "worker 2 does not answer"}, "bad", "Worker 2 does not answer."),
        ({}, {"obstacle": "draining"}, "warning", "Draining: "),
        ({"reachable": False}, {"obstacle": "upstream x is unavailable: y"}, "bad", "Upstream x is unavailable: y."),
        ({}, {"obstacle": "covered prefixes are not loaded yet"}, "warning", "Not ready: covered"),
        ({"trouble": "no answer in time"}, {}, "warning", "The server is slow: no answer in time."),
        ({"role": "replica"}, {}, "warning", "The server is a replica"),
        ({"role": "replica", "slots": 5}, {}, "good", "Good: "),
        ({"next_deadline": 900.0}, {}, "bad", "Nobody removes expired members: the earliest deadline passed 100 s"),
        ({"next_deadline": 995.0}, {}, "good", "Good: "),
        ({"next_deadline": 1100.0, "clock_offset": 150.0}, {}, "bad", "Nobody removes"),
        ({}, {"blind": True}, "warning", "The proxy checks every request"),
        ({}, {"lost": 1234}, "warning", "1,234 events about expired members were lost"),
        ({"clock_offset": -2.5}, {}, "warning", "The server's clock is 2.5 s behind this machine's."),
    ],
)
def test_the_state_is_the_worst_that_there_is_to_say(
    changed: dict[str, object], told: dict[str, object], level: str, text: str
) -> None:
    known: dict[str, Any] = {"hung": None, "obstacle": None, "blind": False, "lost": 0} | told
    state = judge(upstream=UPSTREAM.model_copy(update=changed), now=1000.0, **known)
    assert state.level == level
    assert state.text.startswith(text)
    assert (state.advice is None) == (level == "good")
