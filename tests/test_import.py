"""`expiremember-proxy import`: the deadlines of a KeyDB in a server that has its data."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import hiredis
import pytest

from proxy.keydb import command, source
from proxy.keydb.options import take_order
from proxy.scripts.naming import Names
from proxy.settings import load
from proxy.upstream.words import REACH
from tests.conftest import StartProxy, StartServer
from tests.keydb_files import (
    LOADABLE,
    RECORDED,
    Deadline,
    Manner,
    SyncRelay,
    closed,
    entry,
    recorded,
    recorded_deadlines,
    strings,
)
from tests.raw import request
from tests.servers import KINDS, ROOT, Process, Server, free_port, halt, proxy_environment, until
from tests.test_tls import Files, files, tls_server

__all__ = ["files"]  # a fixture

KIND = "redis-7.0" if "redis-7.0" in KINDS else KINDS[-1]
SENDER = "redis-6.2"
"""It writes RDB files of the version that KeyDB writes."""

FAR = 4_102_444_800_000
NAMES = Names(b"__expiremember__:")


@dataclass
class Ended:
    """How an import ended."""

    status: int
    said: str
    complained: str


def bring(*args: str | Path, stdin: bytes = b"", env: dict[str, str] | None = None) -> Ended:
    """Run an import as its users do."""
    run = subprocess.run(
        [sys.executable, "-m", "proxy", "import", *map(str, args)],
        input=stdin,
        capture_output=True,
        timeout=120,
        env=proxy_environment(env),
        cwd=ROOT,
    )
    ended = Ended(run.returncode, run.stdout.decode(), run.stderr.decode())
    assert "Traceback" not in ended.complained, ended.complained
    return ended


def ask(server: Server, requests: Iterable[tuple[str | bytes | int, ...]]) -> list[object]:
    """Send many requests; return the replies."""
    replies = hiredis.Reader()
    answers: list[object] = []
    left = iter(requests)
    with server.connect() as client:
        while some := list(islice(left, 1000)):
            client.send(b"".join(request(*words) for words in some))
            for _ in some:
                replies.feed(client.reply())
                answers.append(replies.gets())
    return answers


def kept(server: Server, wanted: Iterable[Deadline]) -> set[Deadline]:
    """Return those deadlines that are in the server, to the millisecond."""
    found = set()
    for database in sorted({row[0] for row in wanted}):
        rows = [row for row in wanted if row[0] == database]
        _, *scores = ask(
            server, [("SELECT", database), *(("ZSCORE", NAMES.shadow(key), member) for _, key, member, _ in rows)]
        )
        found |= {row for row, score in zip(rows, scores, strict=True) if score == b"%d" % row[3]}
    return found


def holding(start: StartServer, kind: str, folder: Path, data: bytes, *args: str) -> Server:
    """Start a server that has loaded a file."""
    (folder / "dump.rdb").write_bytes(data)
    return start(kind, "--dir", str(folder), *args)


@pytest.fixture
def target(start_server: StartServer) -> Server:
    """An empty server, of one kind: where it matters what the source does, and not where it goes."""
    return start_server(KIND)


def untouched(server: Server) -> bool:
    """Whether nothing of the proxy's is in the server."""
    return server.command("KEYS", "__expiremember__:*") == b"*0\r\n"


# What it brings.


@pytest.mark.every_kind
def test_all_recorded_deadlines_arrive(
    kind: str, start_server: StartServer, start_proxy: StartProxy, tmp_path: Path
) -> None:
    server = holding(start_server, kind, tmp_path, recorded("types"))
    wanted = recorded_deadlines("types")
    ended = bring("--rdb", tmp_path / "dump.rdb", "--upstream", server.url, "--verify")
    assert ended.status == 0, ended
    assert "1,386  set\n" in ended.said
    assert "1,386  the same\n" in ended.said
    assert kept(server, wanted) == wanted
    for database, key, _, _ in wanted:
        earliest = min(when for other, name, _, when in wanted if (other, name) == (database, key))
        assert ask(server, [("SELECT", database), ("ZSCORE", NAMES.index, key)])[1] == b"%d" % earliest
    proxy = start_proxy(server)
    with proxy.connect() as client:
        database, key, member, when = min(wanted)
        assert client.command("SELECT", database) == b"+OK\r\n"
        left = int(client.command("PTTL", key, member)[1:-2])
        assert abs(time.time() * 1000 + left - when) < 10_000


@pytest.mark.parametrize("name", RECORDED)
def test_each_recorded_file(name: str, start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(KIND)
    data = recorded(name)
    if name in LOADABLE:
        server.close()
        server = holding(start_server, KIND, tmp_path, data)
    else:
        assert server.command("SADD", "s", "a", "b") == b":2\r\n"
    wanted = recorded_deadlines(name)
    passed = {row for row in wanted if row[3] <= time.time() * 1000}
    ended = bring("--rdb", "-", "--upstream", server.url, "--verify", stdin=data)
    assert ended.status == 0, ended
    assert kept(server, wanted) == wanted - passed
    for _, key, member, _ in passed:
        assert server.command("SISMEMBER", key, member) == b":0\r\n"
    assert len(passed) == (25 if name == "passed" else 0)
    if passed:
        assert "25  deadline passed: member removed\n" in ended.said
        assert server.command("SCARD", "s") == b":25\r\n"
    if name == "cron":
        assert "1  KEYDB.CRON jobs skipped, because no other server loads them: 'job'\n" in ended.said
    again = bring("--rdb", "-", "--upstream", server.url, stdin=data)
    assert again.status == 0
    assert kept(server, wanted) == wanted - passed
    assert not passed or "25  deadline passed: member already gone\n" in again.said


def test_what_is_missing_is_counted_and_named_and_what_is_there_is_set(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(KIND, "--databases", "2")
    server.command("SADD", "s", "a", "b")
    server.command("RPUSH", "list", "a")
    server.command("SET", "string", "a")
    server.command("HSET", "cut", "a", "1", b"a\0b", "2")
    server.command("HSET", "clear", b"a\0b", "2")
    server.command("SADD", "alike", "a", b"a\0b", b"a\0c", "x")
    server.command("SADD", "apart", "a", b"a\0b", b"a\0c", "x")
    server.command("SADD", "few", b"a\0b", b"a\0c", "x")
    now = time.time_ns() // 1_000_000
    expires = b"\xfc" + (now - 1000).to_bytes(8, "little")
    data = closed(
        entry(b"s", 2, strings([b"a", b"b", b"x"]), [(b"a", FAR), (b"b", FAR + 1), (b"x", FAR)])
        + entry(b"gone", 2, strings([b"a"]), [(b"a", FAR)])
        + entry(b"due", 2, strings([b"a"]), [(b"a", now - 5)])
        + expires + entry(b"expired", 2, strings([b"a"]), [(b"a", FAR)])
        + entry(b"list", 2, strings([b"a"]), [(b"a", FAR)])
        + entry(b"string", 2, strings([b"a"]), [(b"a", FAR)])
        + entry(b"cut", 2, strings([b"a", b"a\0b"]), [(b"a", FAR)])
        + entry(b"clear", 2, strings([b"a\0b"]), [(b"a\0b", FAR)])
        + entry(b"alike", 2, strings([b"a", b"a\0b", b"a\0c", b"x"]), [(b"a", FAR)] * 3 + [(b"x", FAR)])
        + entry(b"apart", 2, strings([b"a", b"a\0b", b"a\0c", b"x"]), [(b"a", FAR)] * 2 + [(b"a", 1), (b"x", FAR)])
        + entry(b"few", 2, strings([b"a\0b", b"a\0c", b"x"]), [(b"a", FAR), (b"x", FAR)])
        + b"\xfe\x07" + entry(b"far", 2, strings([b"a"]), [(b"a", FAR)])
    )  # fmt: skip
    (tmp_path / "dump.rdb").write_bytes(data)
    dry = bring("--rdb", tmp_path / "dump.rdb", "--upstream", server.url, "--dry-run")
    assert dry.status == 3
    assert untouched(server)
    ended = bring("--rdb", tmp_path / "dump.rdb", "--upstream", server.url)
    assert ended.status == 3
    for said in (
        "           4  left out: KeyDB cut the member off at a NUL byte, and several members match\n"
        "              database 0: 'apart' 'a': 3 different deadlines for 'a', 'a\\x00b', 'a\\x00c'\n"
        "              database 0: 'few' 'a': 1 deadline for 'a\\x00b', 'a\\x00c'\n",
        "imported: 17 deadlines\n",
        "           9  set\n",
        "           2  deadline passed: member already gone\n",
        "           1  no such key\n              database 0: 'gone' 'a'\n",
        "           1  no such member\n              database 0: 's' 'x'\n",
        "           2  the key has another type\n",
        "           1  ambiguous: KeyDB cut the member off at a NUL byte\n",
        "              database 0: 'cut' 'a\\x00b' or 'a'\n",
        "           1  no such database\n              database 7: 'far' 'a'\n",
    ):
        assert said in ended.said, ended.said
    assert dry.said.replace("to be set", "set").replace("dry run, nothing changed", "imported") == ended.said
    wanted = {(0, b"s", b"a", FAR), (0, b"s", b"b", FAR + 1), (0, b"clear", b"a\0b", FAR)}
    wanted |= {(0, b"alike", member, FAR) for member in (b"a", b"a\0b", b"a\0c", b"x")}
    wanted |= {(0, key, b"x", FAR) for key in (b"apart", b"few")}
    assert kept(server, wanted) == wanted


def test_members_are_named_by_key_and_one_is_no_plural(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "dump.rdb"
    members = [b"m%d" % number for number in range(12)]
    data = b"".join(
        entry(b"key:%02d" % number, 2, strings(members), [(one, FAR) for one in members]) for number in range(12)
    )
    file.write_bytes(closed(data))
    said = bring("--rdb", file, "--upstream", server.url, "--dry-run").said
    assert "         144  no such key\n              database 0: 'key:00' 'm0', 'm1', 'm2', … (12)\n" in said
    assert [row.split()[2] for row in said.splitlines() if "database 0" in row] == [
        f"'key:{number:02}'" for number in range(10)
    ]
    assert said.endswith("              …\n")
    file.write_bytes(closed(entry(b"key", 2, strings([b"m"]), [(b"m", FAR)])))
    said = bring("--rdb", file, "--upstream", server.url, "--dry-run").said
    assert " 1 key; 1 of them has members with deadlines: 1 deadline; " in said
    assert "dry run, nothing changed: 1 deadline\n" in said


def test_a_comparison_finds_what_differs(start_server: StartServer, tmp_path: Path) -> None:
    server = holding(start_server, KIND, tmp_path, recorded("large"))
    args = ("--rdb", tmp_path / "dump.rdb", "--upstream", server.url)
    assert bring(*args).status == 0
    _, key, member, when = min(recorded_deadlines("large"))
    server.command("ZADD", NAMES.shadow(key), when + 1, member)
    compared = bring(*args, "--dry-run", "--verify")
    assert compared.status == 3
    assert "4,999  the same\n" in compared.said
    assert f"1  another deadline, or none\n              database 0: 'big' '{member.decode()}'\n" in compared.said
    assert bring(*args, "--verify").status == 0


def test_the_last_members_go_with_their_key_and_leave_nothing(kind: str, start_server: StartServer) -> None:
    server = start_server(kind)
    adding: dict[bytes, tuple[bytes | int, ...]] = {
        b"s": (b"SADD", b"s", b"a", b"b"),
        b"h": (b"HSET", b"h", b"a", 1, b"b", 2),
        b"z": (b"ZADD", b"z", 1, b"a", 2, b"b"),
    }
    for words in adding.values():
        server.command(*words)
    server.command("ZADD", NAMES.shadow(b"s"), FAR, "a")
    server.command("ZADD", NAMES.index, FAR, "s")
    data = closed(b"".join(entry(key, 2, strings([b"a", b"b"]), [(b"a", 1), (b"b", 2)]) for key in adding))
    ended = bring("--rdb", "-", "--upstream", server.url, "--verify", stdin=data)
    assert ended.status == 0, ended
    assert server.command("KEYS", "*") == b"*1\r\n$%d\r\n%b\r\n" % (len(NAMES.covered), NAMES.covered)


# What it refuses, whole, before anything is changed.


@pytest.mark.parametrize("cut", [0, 5, 9, 1000, 3336])
def test_a_file_cut_short_changes_nothing(cut: int, target: Server) -> None:
    target.command("SADD", "s", *(f"m{number}" for number in range(50)))
    ended = bring("--rdb", "-", "--upstream", target.url, stdin=recorded("passed")[:cut])
    assert ended.status == 1
    assert re.fullmatch(
        rf"expiremember-proxy: import: standard input: offset {cut}: the file ends here,[^\n]*; nothing has been "
        r"changed\n",
        ended.complained,
    )
    assert untouched(target)
    assert target.command("SCARD", "s") == b":50\r\n"


def within(*flags: str, rdb: Path | None = None, server: str | None = None, **more: object) -> int:
    """Run an import in this process, where its patience can be changed."""
    settings = load({"upstream": flags[0]}, None)
    given: dict[str, object] = dict.fromkeys(
        ("from_password", "from_password_file", "from_tls_ca_file", "from_tls_cert_file", "from_tls_key_file",
         "from_tls_verify")
    )  # fmt: skip
    given |= {"rdb": None if rdb is None else str(rdb), "from_": server, "dry_run": False, "verify": False, **more}
    return command.run(settings, take_order(given))


def test_damaged_anywhere_it_changes_nothing(
    start_server: StartServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = holding(start_server, KIND, tmp_path, recorded("passed"))
    file = tmp_path / "damaged.rdb"
    for place in range(0, 3337, 97):
        damaged = bytearray(recorded("passed"))
        damaged[place] ^= 0xFF
        file.write_bytes(damaged)
        assert within(server.url, rdb=file) == 1
        assert re.search(r"damaged\.rdb: offset \d+: .*; nothing has been changed\n", capsys.readouterr().err)
    assert untouched(server)
    assert server.command("SCARD", "s") == b":50\r\n"


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        ((), 2, "give one of --rdb and --from"),
        (("--rdb", "a", "--from", "redis://b"), 2, "give one of --rdb and --from"),
        (("--from", "http://b"), 2, "--from: must begin with redis://"),
        (("--from", "redis://:a@b", "--from-password", "c"), 2, "the password is given more than once: --from, --"),
        (("--from", "rediss://b", "--from-tls-ca-file", "/no"), 2, "--from-tls-ca-file /no: cannot be used"),
        (("--from", "redis://b", "--from-password-file", "/no"), 2, "--from-password-file /no: cannot be read"),
        (("--rdb", "/no/such"), 1, "/no/such: cannot be read: No such file or directory"),
        (("--rdb", "/"), 1, "/: cannot be read: Is a directory"),
        (("--rdb", "a", "--embedded"), 2, "no such option"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_one_line(args: tuple[str, ...], status: int, said: str) -> None:
    ended = bring("--upstream", "redis://127.0.0.1:1", *args)
    assert ended.status == status
    assert said in ended.complained
    assert ended.complained.count("\n") == 1


def test_a_server_that_is_not_there_or_refuses(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "large.rdb"
    file.write_bytes(recorded("large"))
    ended = bring("--rdb", file, "--upstream", "redis://127.0.0.1:1")
    assert (ended.status, ended.said) == (1, "")
    assert "redis://127.0.0.1:1: " in ended.complained
    server = holding(start_server, KIND, tmp_path, recorded("large"))
    assert server.command("CONFIG", "SET", "maxmemory", "1", "maxmemory-policy", "noeviction") == b"+OK\r\n"
    ended = bring("--rdb", file, "--upstream", server.url)
    assert ended.status == 1
    assert "raise its maxmemory" in ended.complained
    server.command("CONFIG", "SET", "maxmemory", "0")
    server.command("REPLICAOF", "127.0.0.1", "1")
    ended = bring("--rdb", file, "--upstream", server.url)
    assert ended.status == 1
    assert "it is still a replica: run REPLICAOF NO ONE there first" in ended.complained
    assert untouched(server)


def test_without_room_for_a_temporary_file_nothing_is_changed(target: Server, tmp_path: Path) -> None:
    (tmp_path / "dump.rdb").write_bytes(recorded("large"))
    target.command("SADD", "big", "member:0")
    args = ["import", "--rdb", str(tmp_path / "dump.rdb"), "--upstream", target.url]
    run = subprocess.run(
        ["bash", "-c", 'ulimit -f 1; exec "$0" -m proxy "$@"', sys.executable, *args],
        capture_output=True,
        text=True,
        env=proxy_environment(),
        cwd=ROOT,
    )
    assert run.returncode == 1
    assert re.fullmatch(r"[^\n]*temporary file in /[^\n]*: File too large: set TMPDIR[^\n]*\n", run.stderr)
    assert untouched(target)


def test_an_interrupted_import_can_be_repeated(start_server: StartServer, tmp_path: Path) -> None:
    server = holding(start_server, KIND, tmp_path, recorded("large"))
    args = ("--rdb", str(tmp_path / "dump.rdb"), "--upstream", server.url, "--control-timeout", "60")
    server.command("CLIENT", "PAUSE", 60_000, "WRITE")
    process = Process([sys.executable, "-m", "proxy", "import", *args], proxy_environment())
    until(lambda: b"cmd=publish" in server.command("CLIENT", "LIST"))
    assert process.end(signal.SIGINT) == 130
    assert "interrupted; repeat the import to complete it" in process.output
    assert "Traceback" not in process.output
    server.command("CLIENT", "UNPAUSE")
    assert bring(*args).status == 0
    assert kept(server, recorded_deadlines("large")) == recorded_deadlines("large")


def test_the_rights_of_the_proxy_are_enough(start_server: StartServer, tmp_path: Path) -> None:
    rules = next(
        line.split()[3:]
        for line in (ROOT / "config" / "acl.example").read_text().splitlines()
        if line.startswith("user expiremember ")
    )
    server = holding(start_server, KIND, tmp_path, recorded("passed"))
    assert server.command("ACL", "SETUSER", "expiremember", "on", *rules) == b"+OK\r\n"
    (tmp_path / "password").write_text("change-me\n")
    url = server.url.replace("redis://", "redis://expiremember@")
    args = ("--rdb", tmp_path / "dump.rdb", "--upstream", url, "--upstream-password-file", tmp_path / "password")
    ended = bring(*args, "--verify")
    assert ended.status == 0, ended
    assert "25  set\n" in ended.said
    assert "refused" not in ended.complained
    server.command("ACL", "SETUSER", "expiremember", "-zadd")
    ended = bring(*args)
    assert ended.status == 1
    assert "docs/security.md" in ended.complained


def test_settings_come_from_the_environment_and_from_in_front(target: Server, tmp_path: Path) -> None:
    target.command("SADD", "s", "a")
    data = closed(entry(b"s", 2, strings([b"a"]), [(b"a", FAR)]))
    ended = bring("--rdb", "-", stdin=data, env={"EXPIREMEMBER_UPSTREAM": target.url, "EXPIREMEMBER_PREFIX": "other:"})
    assert ended.status == 0, ended
    assert target.command("ZSCORE", "other:k:{s}", "a") == b"$13\r\n%d\r\n" % FAR
    (tmp_path / "proxy.toml").write_text(f'upstream = "{target.url}"\nprefix = "third:"\n')
    assert bring("--rdb", "-", "--config", tmp_path / "proxy.toml", stdin=data).status == 0
    assert target.command("ZSCORE", "third:k:{s}", "a") == b"$13\r\n%d\r\n" % FAR


# Proxies in front of the server.


def test_proxies_that_run_meanwhile_are_told_first(
    start_server: StartServer, start_proxy: StartProxy, tmp_path: Path
) -> None:
    server = start_server(KIND)
    server.command("SADD", "s", "a", "b")
    proxy = start_proxy(server, "--leftovers-rate", "0")
    (tmp_path / "dump.rdb").write_bytes(closed(entry(b"s", 2, strings([b"a", b"b"]), [(b"a", FAR), (b"b", FAR)])))
    halt(proxy.process.pid)
    try:
        began = time.monotonic()
        ended = bring("--rdb", tmp_path / "dump.rdb", "--upstream", server.url)
        took = time.monotonic() - began
    finally:
        proxy.process.send_signal(signal.SIGCONT)
    assert ended.status == 0, ended
    assert took > 1.9  # until the proxy that does not answer has ceased to trust what it knows
    with proxy.connect() as client:
        assert client.command("SREM", "s", "a") == b":1\r\n"
        assert client.command("SADD", "s", "a") == b":1\r\n"
        assert client.command("TTL", "s", "a") == b":-1\r\n"
        assert int(client.command("PTTL", "s", "b")[1:-2]) > 10**9


def test_prefixes_are_listed_in_each_database_before_anybody_is_told(
    start_server: StartServer, start_proxy: StartProxy, tmp_path: Path
) -> None:
    """Whoever begins meanwhile reads them there."""
    server = start_server(KIND)
    ask(server, [("SADD", "a:1", "m"), ("SELECT", 3), ("SADD", "b:1", "m"), ("SELECT", 5), ("SADD", "a:1", "m")])
    # This one has been written by an older version: nothing says under which prefixes it has keys.
    ask(server, [("SELECT", 5), ("SADD", "old:1", "m"), ("ZADD", NAMES.index, FAR, "old:1")])
    data = b"".join(
        b"\xfe%c" % database + entry(key, 2, strings([b"m"]), [(b"m", FAR)])
        for database, key in ((0, b"a:1"), (3, b"b:1"), (5, b"a:1"))
    )
    (tmp_path / "dump.rdb").write_bytes(closed(data))
    with server.connect() as watch:
        assert watch.command("MONITOR") == b"+OK\r\n"
        assert bring("--rdb", tmp_path / "dump.rdb", "--upstream", server.url).status == 0
        seen = b""
        while b"leave" not in seen:
            seen += watch.some()
    announced = seen.index(b"announce")
    assert all(seen.index(b'"here" "=%c:"' % name) < announced for name in b"ab")
    lists = [ask(server, [("SELECT", number), ("ZRANGE", NAMES.covered, 0, -1)])[1] for number in (0, 3, 5)]
    assert lists == [[b"*", b"=a:"], [b"*", b"=b:"], [b"=a:"]]
    proxy = start_proxy(server)
    assert '"prefixes": 3' in proxy.process.line(lambda line: "prefixes loaded" in line, 4)


def test_no_member_that_comes_back_meanwhile_has_its_old_deadline(
    start_server: StartServer, start_proxy: StartProxy, tmp_path: Path
) -> None:
    server = start_server(KIND)
    proxies = [start_proxy(server, "--leftovers-rate", "0") for _ in range(2)]
    keys = [b"k:%d" % number for number in range(800)]
    ask(server, [("SADD", key, "a", "b") for key in keys])
    data = b"".join(entry(key, 2, strings([b"a", b"b"]), [(b"a", FAR), (b"b", FAR)]) for key in keys)
    (tmp_path / "dump.rdb").write_bytes(closed(data))
    args = ["--rdb", str(tmp_path / "dump.rdb"), "--upstream", server.url]
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy", "import", *args], env=proxy_environment(), cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        with server.connect() as beside, proxies[0].connect() as first, proxies[1].connect() as second:
            for place, key in enumerate(keys):
                until(lambda key=key: beside.command("ZSCORE", NAMES.shadow(key), "a") != b"$-1\r\n")  # type: ignore[misc]
                client = (first, second)[place % 2]
                client.send(request("SREM", key, "a") + request("SADD", key, "a"))
                assert client.replies(2) == [b":1\r\n"] * 2
                assert beside.command("ZSCORE", NAMES.shadow(key), "a") == b"$-1\r\n", key
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert kept(server, {(0, key, b"b", FAR) for key in keys}) == {(0, key, b"b", FAR) for key in keys}


def test_huge_keys_are_told_in_small_messages(
    start_server: StartServer, start_proxy: StartProxy, tmp_path: Path
) -> None:
    """The server drops subscribers for whom it has to keep more than 32 MB."""
    server = start_server(KIND)
    proxy = start_proxy(server, "--leftovers-rate", "0")
    keys = [b"%04d" % number + b"k" * ((1 << 20) - 4) for number in range(40)]
    for key in keys:
        assert server.command("SADD", key, "m", "n") == b":2\r\n"
    data = b"".join(entry(key, 2, strings([b"m", b"n"]), [(b"m", FAR)]) for key in keys)
    (tmp_path / "dump.rdb").write_bytes(closed(data))
    ended = bring("--rdb", tmp_path / "dump.rdb", "--upstream", server.url)
    assert ended.status == 0, ended
    assert "40  set\n" in ended.said
    assert not [line for line in proxy.log() if line["level"] == "warning"]


@pytest.mark.parametrize("lacking", ["+@all -publish", "+@all -subscribe", "+@all -select"])
def test_who_cannot_tell_others_sets_nothing(lacking: str, target: Server) -> None:
    target.command("SADD", "s", "a")
    assert target.command("ACL", "SETUSER", "lacks", "on", ">pw", "~*", "&*", *lacking.split()) == b"+OK\r\n"
    data = closed(entry(b"s", 2, strings([b"a"]), [(b"a", FAR)]))
    ended = bring("--rdb", "-", "--upstream", target.url.replace("//", "//lacks:pw@"), stdin=data)
    assert ended.status == 1, ended
    assert "rights" in ended.complained
    assert untouched(target)


# From a server.


@pytest.fixture
def sender(start_server: StartServer, tmp_path: Path) -> Server:
    """A server that has the data of a recorded file, and writes its files as KeyDB does."""
    (tmp_path / "sender").mkdir()
    return holding(start_server, SENDER, tmp_path / "sender", recorded("types"))


@pytest.mark.parametrize("manner", [Manner(), Manner(by_mark=True, signs=3)], ids=["size", "mark"])
def test_from_a_server(manner: Manner, sender: Server, start_server: StartServer, tmp_path: Path) -> None:
    server = holding(start_server, KIND, tmp_path, recorded("types"))
    wanted = recorded_deadlines("types")
    before = sender.command("DEBUG", "DIGEST")
    with SyncRelay(sender.address, wanted, manner) as relay:
        ended = bring("--from", relay.url, "--upstream", server.url, "--verify")
        assert ended.status == 0, ended
        assert relay.seen == [b"REPLCONF", b"REPLCONF", b"SYNC"]
    assert kept(server, wanted) == wanted
    assert sender.command("DEBUG", "DIGEST") == before


def test_from_a_server_that_wants_a_login(sender: Server, target: Server, tmp_path: Path) -> None:
    target.command("SADD", "set:int", "0")
    assert sender.command("CONFIG", "SET", "requirepass", "hidden/1") == b"+OK\r\n"
    with SyncRelay(sender.address, [(0, b"set:int", b"0", FAR)]) as relay:
        ended = bring("--from", relay.url, "--upstream", target.url)
        assert ended.status == 1
        assert "NOAUTH" in ended.complained
        assert "--from-password-file" in ended.complained
        ended = bring("--from", relay.url, "--upstream", target.url, env={"EXPIREMEMBER_FROM_PASSWORD": "wrong"})
        assert ended.status == 1
        assert "AUTH refused: WRONGPASS" in ended.complained
        (tmp_path / "password").write_text("hidden/1\n")
        ended = bring("--from", relay.url, "--from-password-file", tmp_path / "password", "--upstream", target.url)
        assert ended.status == 0, ended
        assert relay.seen == [*[b"REPLCONF"] * 2, b"AUTH", b"AUTH", *[b"REPLCONF"] * 2, b"SYNC"]
    assert "hidden" not in ended.said + ended.complained
    assert target.command("ZSCORE", NAMES.shadow(b"set:int"), "0") == b"$13\r\n%d\r\n" % FAR


def test_a_source_that_does_not_know_the_login_is_no_reason_to_show_it(
    start_server: StartServer, target: Server, tmp_path: Path
) -> None:
    source = start_server(SENDER, "--rename-command", "AUTH", "xx")
    ended = bring("--from", source.url.replace("//", "//:hUnter2secret@"), "--upstream", target.url)
    assert ended.status == 1
    assert "the server has no AUTH" in ended.complained
    assert "hUnter2secret" not in ended.complained + ended.said


def test_from_a_server_by_tls(start_server: StartServer, files: Files, target: Server) -> None:
    server, port = tls_server(start_server, files, files.server, clients="yes")
    url = f"rediss://127.0.0.1:{port}"
    ended = bring("--from", url, "--upstream", target.url)
    assert ended.status == 1
    assert "certificate" in ended.complained
    trusted = ("--from-tls-ca-file", files.authority.file, "--from-tls-cert-file", files.client.file)
    ended = bring("--from", url, *trusted, "--from-tls-key-file", files.client.key, "--upstream", target.url)
    # This far it has come: the file of this server is no KeyDB's.
    assert ended.status == 1
    assert "offset 5: RDB version 10" in ended.complained
    assert server.command("PING") == b"+PONG\r\n"


@pytest.mark.parametrize(
    ("manner", "said"),
    [
        (Manner(only=0), "the server closed the connection"),
        (Manner(only=70_000), "the server closed the connection"),
        (Manner(only=70_000, by_mark=True), "the server closed the connection"),
        (Manner(only=70_000, silent=True), "no data for"),
        (Manner(answer=b"-NOMASTERLINK Can't SYNC\r\n"), "SYNC refused: NOMASTERLINK"),
        (Manner(answer=b"-NOPERM no\r\n"), "its user needs"),
        (Manner(answer=b"+FULLRESYNC\r\n"), "unexpected reply to SYNC"),
        (Manner(signs=100_000), "nothing but empty lines"),
        (Manner(answer=b"$99999999999999999999\r\n"), "unexpected reply to SYNC"),
        (Manner(answer=b"x" * 5000 + b"\r\n"), "unexpected reply: is it a KeyDB?"),
        (Manner(answer=b"$200\r\n" + bytes(200)), "offset 0: not an RDB file"),
    ],
)  # fmt: skip
def test_a_server_that_fails_changes_nothing(
    manner: Manner, said: str, sender: Server, target: Server, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(source, "SILENCE_SECONDS", 0.5)
    target.command("SADD", "set:int", "0")
    with SyncRelay(sender.address, [(0, b"set:int", b"0", FAR)], manner) as relay:
        assert within(target.url, server=relay.url) == 1
    complained = capsys.readouterr().err
    assert said in complained
    assert complained.count("\n") == 1
    assert untouched(target)


def test_a_server_that_cannot_be_reached_is_said_in_words(target: Server) -> None:
    port = free_port()
    for url, said in (
        (f"redis://127.0.0.1:{port}", f"redis://127.0.0.1:{port}: connection refused"),
        ("unix:///no/such.sock", "unix:///no/such.sock: no such file or directory"),
        ("redis://name.invalid:6379", "redis://name.invalid:6379: its name cannot be looked up"),
    ):
        ended = bring("--from", url, "--upstream", target.url)
        assert (ended.status, ended.complained) == (1, f"expiremember-proxy: import: {said}; {REACH}\n")


# How much it takes.


def many(keys: int, members: int) -> Iterator[bytes]:
    """A file with so many keys of so many members each, all with deadlines."""
    yield b"\xfe\x00"
    for number in range(keys):
        names = [b"member:%d:%d" % (number, place) for place in range(members)]
        yield entry(b"key:%d" % number, 2, strings(names), [(name, FAR + place) for place, name in enumerate(names)])


_WATCHED = """
import atexit, pathlib, re, sys
from proxy.cli import main
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: print("MB", int(re.search("VmHWM:\\s+(\\d+)", status.read_text())[1]) >> 10))
sys.argv[0] = "expiremember-proxy"
main()
"""
"""An import that says in the end how much memory it has needed: rusage would tell that of the tests, before exec."""


def brings_many(start: StartServer, folder: Path, keys: int, members: int, *more: str) -> None:
    with (folder / "many.rdb").open("wb") as file:
        file.write(closed(b"".join(many(keys, members))))
    server = start(KIND, "--dir", str(folder), "--dbfilename", "many.rdb")
    args = ["import", "--rdb", str(folder / "many.rdb"), "--upstream", server.url, *more]
    began = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-c", _WATCHED, *args], env=proxy_environment(), cwd=ROOT, capture_output=True, text=True
    )
    seconds = time.monotonic() - began
    count = keys * members
    assert run.returncode == 0, run
    assert f"{count:>12,}  set\n" in run.stdout
    assert not more or f"{count:>12,}  the same\n" in run.stdout
    megabytes = int(run.stdout.split("MB ")[1])
    print(f"\n{count:,} deadlines in {keys:,} keys: {seconds:.1f} s {' '.join(more)}, {megabytes} MB")
    assert megabytes < 100
    assert server.command("ZCARD", NAMES.index) == b":%d\r\n" % keys


@pytest.mark.parametrize(("keys", "members"), [(1, 20_000), (10_000, 2)])
def test_many_deadlines_in_bounded_memory(keys: int, members: int, start_server: StartServer, tmp_path: Path) -> None:
    brings_many(start_server, tmp_path, keys, members, "--verify")


@pytest.mark.long
@pytest.mark.parametrize(("keys", "members"), [(1, 1_000_000), (1000, 1000), (500_000, 2)])
def test_a_million_deadlines_in_bounded_memory(
    keys: int, members: int, start_server: StartServer, tmp_path: Path
) -> None:
    brings_many(start_server, tmp_path, keys, members)
