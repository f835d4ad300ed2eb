"""A proxy takes the place of one that runs, or of one that systemd starts anew, and nobody is refused meanwhile."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
import redis

from proxy.embedded.server import GUARD
from proxy.listen.given import from_manager
from proxy.listen.predecessor import ENDS, GIVES_UP, NEXT, SERVES, STARTS, Predecessor
from proxy.listen.succession import SILENT_SECONDS, STEP_SECONDS, Succession
from proxy.server import FIRST_SECONDS
from proxy.settings import Settings, SettingsError
from proxy.signals import Signals
from tests import servers
from tests.admin import Admin
from tests.conftest import StartProxy
from tests.pages import page
from tests.patience import patience
from tests.raw import Raw, request
from tests.servers import Process, Proxy, Server, free_port, halt, is_ready, proxy_environment, until
from tests.test_docs import at, folder, one_kind
from tests.test_tls import Files, flags

__all__ = ["folder"]  # a fixture

Again = Callable[..., Proxy]


def again_at(server: Server, start_proxy: StartProxy, folder: Path) -> Again:
    """Return what starts a proxy at the same address, which takes over from the one before."""
    listen = f"127.0.0.1:{free_port()}"
    takeover = str(folder / "takeover")

    def start(*arguments: str, ready: bool = True) -> Proxy:
        if "--listen" not in arguments:
            arguments = ("--listen", listen, *arguments)
        if "--upstream" not in arguments:
            arguments = ("--upstream", server.url, *arguments)
        return start_proxy(None, "--takeover", takeover, *arguments, ready=ready)

    return start


@pytest.fixture
def again(server: Server, start_proxy: StartProxy, tmp_path: Path) -> Again:
    """Starts a proxy at the same address, which takes over from the one before."""
    return again_at(server, start_proxy, tmp_path)


def ended_well(proxy: Proxy) -> bool:
    """Whether a proxy has ended, as it should."""
    if not proxy.process.ended:
        return False
    assert proxy.process.wait() == 0, proxy.process.output
    assert "Traceback" not in proxy.process.output, proxy.process.output
    return True


def has_ended(proxy: Proxy) -> bool:
    return proxy.process.ended


def said(proxy: Proxy, event: str) -> bool:
    return any(line["event"] == event for line in proxy.log())


# Hand-over.


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_the_next_proxy_takes_the_place_of_the_one_that_runs(
    again: Again, tmp_path: Path, before: int, after: int
) -> None:
    admin, path = f"unix://{tmp_path / 'admin'}", tmp_path / "clients"
    more = ("--listen", f"127.0.0.1:{free_port()}", "--listen", f"unix://{path}", "--admin", admin)
    old = again(*more, "--workers", str(before))
    assert stat.S_IMODE((tmp_path / "takeover").stat().st_mode) == 0o600
    with ExitStack() as stack:
        blocked, idle, fresh, at_path = (stack.enter_context(old.connect()) for _ in range(4))
        for client in (blocked, idle, at_path):
            assert client.command("PING") == b"+PONG\r\n"
        blocked.send_command("BLPOP", "jobs", 60)
        until(lambda: b"cmd=blpop" in idle.command("CLIENT", "LIST"))
        new = again(*more, "--workers", str(after))
        assert new.command("RPUSH", "jobs", "one") == b":1\r\n"
        assert blocked.reply() == b"*2\r\n$4\r\njobs\r\n$3\r\none\r\n"
        assert fresh.command("ECHO", "first") == b"$5\r\nfirst\r\n"  # of who had only connected
        assert fresh.some() == b""
        assert idle.some() == b""
        until(lambda: ended_well(old))
        assert said(old, "handed over to another process")
        assert said(new, "took over the listening sockets")
        assert path.exists()
        assert (tmp_path / "admin").exists()
        for place in (new.address, path):
            with Raw(place, 20) as client:
                assert b"\r\nprocess_id:" in client.command("INFO", "expiremember")
        until(lambda: Admin(tmp_path / "admin").ask("/readyz")[0] == 200)
    new.stop()
    assert not [found for found in (path, tmp_path / "admin", tmp_path / "takeover") if found.exists()]


@one_kind
def test_the_page_says_how_to_take_over(server: Server, folder: Path) -> None:
    """The command of the page, twice."""
    (block,) = [block for block in page("docs/operations.md").blocks if "--takeover" in block.text]
    port = free_port()
    words = ["bash", "-c", f"exec {at(block.text, port, server.port)}"]
    with ExitStack() as stack:
        processes = []
        for _ in range(2):
            processes.append(Process(words, proxy_environment({"HOME": str(folder)}), folder))
            stack.callback(processes[-1].kill)
            processes[-1].line(is_ready)
        assert processes[0].wait() == 0
        with Raw(("127.0.0.1", port)) as client:
            assert client.command("PING") == b"+PONG\r\n"


def test_who_cannot_serve_takes_nothing_over(again: Again, tmp_path: Path) -> None:
    path = f"unix://{tmp_path / 'clients'}"
    old = again("--listen", path)
    nowhere = f"redis://127.0.0.1:{free_port()}"
    for workers in ("1", "2"):
        new = again(
            "--listen", path, "--upstream", nowhere, "--connect-timeout", "1", "--workers", workers, ready=False
        )
        until(partial(has_ended, new), 20, "an end")
        assert new.process.wait() == 2
        assert "the running proxy continues to serve" in new.process.output
        assert (tmp_path / "clients").exists()
        assert old.command("PING") == b"+PONG\r\n"
    killed = again("--listen", path, "--upstream", nowhere, "--connect-timeout", "60", ready=False)
    until(lambda: said(killed, "no control connection to the upstream"))
    killed.process.kill()
    assert old.command("PING") == b"+PONG\r\n"
    new = again("--listen", path)
    until(lambda: ended_well(old))
    assert new.command("PING") == b"+PONG\r\n"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_upstream_that_says_nothing_is_given_up_in_time(again: Again, workers: str) -> None:
    """Not only its first attempt."""
    old = again()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nowhere = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        new = again("--upstream", nowhere, "--connect-timeout", "2", "--workers", workers, ready=False)
        with silent.accept()[0]:
            began = time.monotonic()
            until(partial(has_ended, new), 20, "an end")
            assert time.monotonic() - began < patience(5)
    assert new.process.wait() == 2
    assert "it does not answer; the running proxy continues to serve" in new.process.output
    assert old.command("PING") == b"+PONG\r\n"


def check_parts(again: Again, workers: str, before: int, size: int = 100) -> None:
    """A client whose first request has arrived in part, or not at all, can send the rest; others are closed at once."""
    old = again("--workers", workers)
    words = request("SET", "k", "v" * size)
    with old.connect() as client, old.connect() as silent, old.connect() as second, old.connect() as both:
        client.send(words[:before])
        assert second.command("PING") == b"+PONG\r\n"
        second.send(words[:30])
        both.send(request("PING") + words[:30])
        assert both.reply() == b"+PONG\r\n"
        until(lambda: b"connected_clients" in old.command("INFO", "clients"))
        again("--workers", workers)
        until(lambda: said(old, "handed over to another process"))
        assert second.some() == both.some() == b""
        for part in (words[before : before + 1], words[before + 1 : before + 10], words[before + 10 : -1], words[-1:]):
            assert client.silent(0.1)
            client.send(part)
        assert client.reply() == b"+OK\r\n"
        assert client.some() == b""
        silent.close()
        until(lambda: ended_well(old))


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("before", [0, 1, 30])
def test_a_first_request_in_parts_is_answered(again: Again, workers: str, before: int) -> None:
    check_parts(again, workers, before)


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("before", [100, 20_000, 60_000])
def test_a_large_first_request_in_parts_is_answered(again: Again, workers: str, before: int) -> None:
    """One that is sent on while it arrives, be that before or after the takeover."""
    check_parts(again, workers, before, 80_000)


def test_the_rest_of_a_first_request_is_waited_for_so_long(again: Again) -> None:
    old = again()
    with old.connect() as client:
        client.send(request("SET", "k", "v")[:9])
        until(lambda: b"connected_clients" in old.command("INFO", "clients"))
        again()
        until(lambda: said(old, "handed over to another process"))
        began = time.monotonic()
        assert client.some() == b""
        assert time.monotonic() - began > FIRST_SECONDS - 1
    until(lambda: ended_well(old))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_who_is_silent_in_its_handshake_holds_up_nobody(again: Again, tmp_path: Path, workers: str) -> None:
    check_silent_handshake(again, tmp_path, workers)


def check_silent_handshake(again: Again, folder: Path, workers: str) -> None:
    """Others are seen off at once, and whoever goes on with its handshake is still let in."""
    files, port = Files(folder), free_port()
    context = ssl.create_default_context(cafile=str(files.authority.file))
    mine = flags(listen_tls_cert_file=files.server.file, listen_tls_key_file=files.server.key, listen_tls_timeout="60")
    listen = ("--listen", f"127.0.0.1:{free_port()}", "--listen", f"tls://127.0.0.1:{port}")
    start = partial(again, *listen, *mine, "--shutdown-timeout", "60", "--workers", workers)
    old = start()
    with ExitStack() as stack:
        slow, *_ = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(4)]
        idle = stack.enter_context(old.connect())
        assert idle.command("PING") == b"+PONG\r\n"
        start()
        until(lambda: said(old, "handed over to another process"))
        began = time.monotonic()
        with context.wrap_socket(slow, server_hostname="127.0.0.1") as late:
            late.sendall(request("PING"))
            assert late.recv(100) == b"+PONG\r\n"
        assert idle.some() == b""
        until(lambda: ended_well(old))
        assert time.monotonic() - began < patience(FIRST_SECONDS + 5)


def check_the_admin_port(again: Again, folder: Path) -> None:
    """While the old one answers what has come, it is the new one that says how the proxy is."""
    paths = Paths(folder)
    old = again(*paths.flags)
    with Raw(paths.clients, 20) as blocked, Raw(paths.clients, 20) as other:
        blocked.send_command("BLPOP", "none", 0)
        until(lambda: b"cmd=blpop" in other.command("CLIENT", "LIST"))
        again(*paths.flags)
        until(lambda: said(old, "handed over to another process"))
        until(lambda: said(old, "stopping"))
        until(lambda: Admin(paths.admin).ask("/readyz")[0] == 200)
        assert [Admin(paths.admin).ask("/readyz")[0] for _ in range(40)] == [200] * 40
        assert {Admin(paths.admin).metrics()["client_connections"] for _ in range(4)} == {0}
        assert not old.process.ended


def test_the_admin_port_is_the_new_ones(again: Again, tmp_path: Path) -> None:
    check_the_admin_port(again, tmp_path)


def test_what_a_killed_proxy_has_left_is_no_hindrance(again: Again, tmp_path: Path) -> None:
    again("--listen", f"unix://{tmp_path / 'clients'}").close()
    new = again("--listen", f"unix://{tmp_path / 'clients'}")
    assert new.command("PING") == b"+PONG\r\n"


def test_something_else_at_the_path_is_said(again: Again, tmp_path: Path) -> None:
    (tmp_path / "takeover").write_text("mine")
    proxy = again(ready=False)
    assert proxy.process.wait() == 2
    assert "expiremember-proxy: takeover: " in proxy.process.output
    assert (tmp_path / "takeover").read_text() == "mine"


def talks(path: Path, answers: list[bytes], visits: int = 1) -> threading.Thread:
    """Answer visitors as no proxy would."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with listener:
            for _ in range(visits):
                with listener.accept()[0] as visitor:
                    for answer in answers:
                        visitor.recv(1)
                        visitor.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([], "hands over no sockets"),
        ([b"nonsense"], "not a proxy"), ([b"{}"], "not a proxy"), ([b"[]"], "not a proxy"),
        ([b"g"], "keeps its sockets"),
        ([b'{"is": "takeover"}'], "not a proxy"), ([b'{"is": "all"}'], "not a proxy"),
        ([b'{"is": "all", "version": 2, "keeps_files": true}'], "incompatible version"),
    ],
)  # fmt: skip
def test_what_is_no_proxy_of_this_version_is_refused(tmp_path: Path, answers: list[bytes], told: str) -> None:
    thread = talks(tmp_path / "takeover", answers, 1 if answers else 1_000)
    with pytest.raises(SettingsError, match=told):
        Succession.of(Settings(takeover=tmp_path / "takeover"), None)
    thread.join(10 if answers else 0)


@pytest.mark.parametrize("visits", [1, 3])
def test_who_meets_one_that_ends_starts_as_the_first(tmp_path: Path, visits: int) -> None:
    thread = talks(tmp_path / "takeover", [], visits)
    made = Succession.of(Settings(takeover=tmp_path / "takeover"), None)
    thread.join(10)
    assert made.given is None
    assert made.alone.is_set()


def check_meeting_one_that_ends(again: Again, folder: Path) -> None:
    """Where it hangs up several times before it has ended, the next one starts as the first."""
    talks(folder / "takeover", [], 3)
    proxy = again(ready=False)
    until(lambda: '"ready"' in proxy.process.output or proxy.process.ended)
    assert not proxy.process.ended, proxy.process.output


def test_a_process_that_meets_one_that_ends_starts(again: Again, tmp_path: Path) -> None:
    check_meeting_one_that_ends(again, tmp_path)


def test_sockets_of_another_user_are_not_taken(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        return  # nobody else's socket can be made
    tmp_path.chmod(0o777)
    program = "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]);"
    program += "s.listen(); print('ready', flush=True); s.accept()[0].recv(1)"
    for above in tmp_path.parents:
        if not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    other = Process([sys.executable, "-S", "-c", program, str(tmp_path / "takeover")])
    try:
        other.line(is_ready)
        with pytest.raises(SettingsError, match="another user"):
            Succession.of(Settings(takeover=tmp_path / "takeover"), None)
    finally:
        other.kill()


# Ends on the way.


class Paths:
    """The files of a proxy's Unix sockets.

    Args:
        folder: where.
    """

    def __init__(self, folder: Path) -> None:
        self.clients, self.admin, self.takeover = (folder / name for name in ("clients", "admin", "takeover"))
        self.flags = ("--listen", f"unix://{self.clients}", "--admin", f"unix://{self.admin}")

    def there(self) -> list[str]:
        return [path.name for path in (self.clients, self.admin, self.takeover) if path.exists()]

    def check_served(self) -> None:
        """See that what listens at each answers."""
        with Raw(self.clients, 20) as client:
            assert client.command("CLIENT", "ID").startswith(b":")
        assert Admin(self.admin).ask("/livez")[0] == 200


ALL = ["clients", "admin", "takeover"]


def starting(again: Again, paths: Paths, *arguments: str) -> Proxy:
    """Start a proxy that has all sockets, and waits for its upstream, which is not there."""
    nowhere = f"redis://127.0.0.1:{free_port()}"
    new = again(*paths.flags, "--upstream", nowhere, "--connect-timeout", "300", *arguments, ready=False)
    until(lambda: said(new, "no control connection to the upstream"), 20)
    return new


def check_dropped(again: Again, folder: Path, before: str, after: str) -> None:
    """What the new one does not want is closed, and its files go; the one after that can have all again."""
    paths, port = Paths(folder), free_port()
    every = (*paths.flags, "--listen", f"127.0.0.1:{port}", "--listen", f"127.0.0.1:{free_port()}")
    old = again(*every, "--workers", before)
    failed = starting(again, paths, "--listen", every[-1], "--workers", after)
    failed.process.send_signal(signal.SIGTERM)
    until(partial(has_ended, failed))
    assert paths.there() == ALL
    paths.check_served()
    few = again("--listen", every[-1], "--workers", after)
    until(lambda: ended_well(old))
    assert paths.there() == ["takeover"]
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
    assert few.command("PING") == b"+PONG\r\n"
    again(*every, "--workers", before)
    until(lambda: ended_well(few))
    paths.check_served()
    with Raw(("127.0.0.1", port), 20) as again_there:
        assert again_there.command("PING") == b"+PONG\r\n"


@pytest.mark.parametrize(("before", "after"), [("1", "1"), ("2", "2"), ("1", "2"), ("2", "1")])
def test_addresses_that_are_no_longer_wanted_are_closed(again: Again, tmp_path: Path, before: str, after: str) -> None:
    check_dropped(again, tmp_path, before, after)


def test_who_was_left_more_than_it_wants_removes_all(again: Again, tmp_path: Path) -> None:
    """Where it ends before it has served."""
    paths = Paths(tmp_path)
    old = again(*paths.flags)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nowhere = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        new = again("--upstream", nowhere, "--connect-timeout", "300", ready=False)
        with silent.accept()[0]:
            old.stop()
            assert paths.there() == ALL
            new.process.send_signal(signal.SIGTERM)
            until(partial(has_ended, new))
    assert paths.there() == []


def check_bound_in_vain(again: Again, folder: Path, workers: str) -> None:
    """Who takes nothing over removes the files that it has bound, and no others."""
    paths = Paths(folder)
    old = again(*paths.flags[:2])
    for way in ("status 2", "SIGTERM"):
        more = ("--listen", f"unix://{folder / 'more'}", "--workers", workers)
        if way == "SIGTERM":
            new = starting(again, paths, *more)
            assert (folder / "more").exists()
            assert paths.there() == ALL
            new.process.send_signal(signal.SIGTERM)
        else:
            nowhere = f"redis://127.0.0.1:{free_port()}"
            new = again(*paths.flags, *more, "--upstream", nowhere, "--connect-timeout", "1", ready=False)
        until(partial(has_ended, new), 20)
        assert not (folder / "more").exists()
        assert paths.there() == ["clients", "takeover"]
    with Raw(paths.clients, 20) as client:
        assert client.command("PING") == b"+PONG\r\n"
    old.stop()
    assert paths.there() == []


@pytest.mark.parametrize("workers", ["1", "2"])
def test_who_takes_nothing_over_removes_what_it_has_bound(again: Again, tmp_path: Path, workers: str) -> None:
    check_bound_in_vain(again, tmp_path, workers)


def check_foreign(again: Again, folder: Path, after: str, workers: str) -> None:
    """What another program has bound at a path since is not removed, be the address still wanted or not."""
    paths = Paths(folder)
    old = again(*paths.flags, "--workers", workers)
    with ExitStack() as stack:
        for path in (paths.clients, paths.admin):
            path.unlink()
            stack.enter_context(bound(path))
        new = again(*(paths.flags if after == "wanted" else ()), "--workers", workers)
        until(lambda: ended_well(old))
        assert paths.there() == ALL
        new.stop()
        assert paths.there() == ["clients", "admin"]


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("after", ["wanted", "dropped"])
def test_files_of_others_are_left(again: Again, tmp_path: Path, after: str, workers: str) -> None:
    check_foreign(again, tmp_path, after, workers)


def test_files_are_left_where_the_old_one_does_not_tell_them_apart(again: Again, tmp_path: Path) -> None:
    """A proxy from before says nothing of them."""
    paths = Paths(tmp_path)
    with ExitStack() as stack:
        meeting, clients, admin = (
            stack.enter_context(bound(tmp_path / name)) for name in ("takeover", "clients", "admin")
        )
        new = again(*paths.flags, ready=False)
        visitor = stack.enter_context(meeting.accept()[0])
        for kind, path, one in (
            ("takeover", None, meeting), ("clients", paths.clients, clients), ("admin", paths.admin, admin),
        ):  # fmt: skip
            visitor.recv(1)
            socket.send_fds(visitor, [json.dumps({"is": kind, "address": f"unix://{path}"}).encode()], [one.fileno()])
        visitor.recv(1)
        visitor.sendall(b'{"is": "all", "version": 1, "keeps_files": true}' + ENDS)
    new.until_ready()
    paths.check_served()
    new.stop()
    assert paths.there() == ALL


def check_one_answers(again: Again, folder: Path, workers: str) -> None:
    """The one that serves answers probes, and is told to drain: never one that starts."""
    paths = Paths(folder)
    old = again(*paths.flags)
    until(lambda: Admin(paths.admin).ask("/readyz")[0] == 200)
    failed = starting(again, paths, "--workers", workers)
    assert [Admin(paths.admin).ask("/readyz")[0] for _ in range(40)] == [200] * 40
    failed.process.kill()
    new = again(*paths.flags, "--workers", workers, ready=False)
    answers = []
    while not said(new, "ready"):
        answers.append(Admin(paths.admin).ask("/readyz")[0])
    until(lambda: ended_well(old))
    answers += [Admin(paths.admin).ask("/readyz")[0] for _ in range(40)]
    assert set(answers) == {200}, Counter(answers)
    starting(again, paths, "--workers", workers)
    assert Admin(paths.admin).ask("/drain", "POST")[0] == 202
    until(lambda: said(new, "drain requested by the admin port"))


def check_a_late_probe(again: Again, folder: Path, workers: str) -> None:
    """One whose connection the old one accepted before it left: the address is served, so that is the answer."""
    paths = Paths(folder)
    old = again(*paths.flags, "--workers", workers)
    with Raw(paths.clients, 20) as blocked, Raw(paths.clients, 20) as other, Admin(paths.admin).conversation() as late:
        blocked.send_command("BLPOP", "none", 0)
        until(lambda: b"cmd=blpop" in other.command("CLIENT", "LIST"))
        until(lambda: Admin(paths.admin).ask("/readyz")[0] == 200)
        again(*paths.flags, "--workers", workers)
        until(lambda: said(old, "stopping"))
        late.request("GET", "/readyz")
        assert late.getresponse().status == 200
    until(lambda: ended_well(old))


def test_a_probe_that_the_old_one_has_is_answered(again: Again, tmp_path: Path) -> None:
    """Not so where there are workers: their supervisor ends at once, and waits 50 ms for who is silent till then."""
    check_a_late_probe(again, tmp_path, "1")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_admin_port_is_of_the_one_that_serves(again: Again, tmp_path: Path, workers: str) -> None:
    check_one_answers(again, tmp_path, workers)


def check_left(again: Again, folder: Path, way: str, workers: str) -> None:
    """The old one ends before the new one can serve: that has everything then, and serves as after any start."""
    paths = Paths(folder)
    old = again(*paths.flags, "--workers", workers)
    with Raw(paths.clients, 20) as blocked, Raw(paths.clients, 20) as other:
        blocked.send_command("BLPOP", "none", 0)
        until(lambda: b"cmd=blpop" in other.command("CLIENT", "LIST"))
        new = starting(again, paths, "--workers", workers)
        assert not said(new, "ready")
        if way == "killed":
            old.process.kill()
        else:
            old.process.send_signal(signal.SIGTERM)
            until(lambda: said(old, "listening sockets handed to the new process"))
            if way == "twice":
                old.process.send_signal(signal.SIGTERM)
    until(partial(has_ended, old))
    new.until_ready()
    assert paths.there() == ALL
    with Raw(paths.clients, 20) as client:
        assert client.command("PING").startswith(b"-")  # it has no upstream, but it is there
    assert Admin(paths.admin).ask("/livez")[0] == 200
    third = again(*paths.flags, "--workers", workers)
    until(lambda: ended_well(new))
    assert paths.there() == ALL
    paths.check_served()
    third.stop()
    assert paths.there() == []


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("way", ["told", "twice", "killed"])
def test_who_starts_has_all_when_the_other_ends(again: Again, tmp_path: Path, way: str, workers: str) -> None:
    check_left(again, tmp_path, way, workers)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_who_was_left_all_removes_it(again: Again, tmp_path: Path, workers: str) -> None:
    """Also where it ends before it has served; and where it is killed, the next one does."""
    paths = Paths(tmp_path)
    old = again(*paths.flags)
    new = starting(again, paths, "--workers", workers)
    new.process.send_signal(signal.SIGTERM)
    until(partial(has_ended, new))
    assert paths.there() == ALL  # the other one's, still
    paths.check_served()
    new = starting(again, paths, "--workers", workers)
    old.stop()
    assert paths.there() == ALL
    new.until_ready()
    new.stop()
    assert paths.there() == []
    old = again(*paths.flags)
    new = starting(again, paths, "--workers", workers)
    old.stop()
    new.process.kill()
    assert paths.there() == ALL
    again(*paths.flags, "--workers", workers)
    paths.check_served()


def visit(paths: Paths) -> Predecessor:
    """Get all sockets, as a proxy does that starts."""
    found = Predecessor.at(paths.takeover)
    assert found is not None
    return found


def forget(visitor: Predecessor) -> None:
    """End a visitor, as if it had been killed."""
    visitor.given.close()
    if visitor.listener is not None:
        visitor.listener.close()
    visitor.close()


def test_files_are_left_to_nobody_who_has_gone(again: Again, tmp_path: Path) -> None:
    """A visitor that is gone, or has not got all, is no heir; its end may not have been noticed yet."""
    paths = Paths(tmp_path)
    old = again(*paths.flags)
    forget(visit(paths))
    old.stop()
    assert paths.there() == []
    old = again(*paths.flags)
    with socket.socket(socket.AF_UNIX) as half:
        half.connect(str(paths.takeover))
        half.sendall(NEXT)
        socket.recv_fds(half, 4096, 8)
        old.stop()
        assert paths.there() == []
        assert half.recv(1) == b""
    old = again(*paths.flags)
    stopped = visit(paths)
    halt(old.process.pid)
    forget(stopped)
    os.kill(old.process.pid, signal.SIGTERM)
    os.kill(old.process.pid, signal.SIGCONT)
    until(lambda: ended_well(old))
    assert paths.there() == []


@pytest.mark.parametrize("first", ["old", "new"])
def test_of_two_that_end_at_once_one_removes_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The other one ends between the look at it and what follows from that."""
    path = tmp_path / "takeover"

    async def main() -> None:
        old = Succession(path)
        await old.begin(Signals())
        new = await asyncio.to_thread(Succession.of, Settings(takeover=path), None)
        new.watch()
        await asyncio.to_thread(until, lambda: old._has_all)
        tell, look = Succession._tell_end, Predecessor.look

        def tell_late(one: Succession, visitor: socket.socket) -> bool:
            new.close()
            return tell(one, visitor)

        def look_early(one: Predecessor) -> None:
            look(one)
            monkeypatch.setattr(Predecessor, "look", look)
            old.close()

        if first == "old":
            monkeypatch.setattr(Succession, "_tell_end", tell_late)
            old.close()
        else:
            monkeypatch.setattr(Predecessor, "look", look_early)
            new.close()
        assert not path.exists()

    asyncio.run(main())


def test_a_word_at_once_behind_the_sockets_is_heard(again: Again, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "takeover"))
        listener.listen()
        nowhere = f"redis://127.0.0.1:{free_port()}"
        new = again("--upstream", nowhere, "--connect-timeout", "300", ready=False)
        visitor, _ = listener.accept()
    with visitor:
        visitor.recv(1)
        visitor.sendall(b'{"is": "all", "version": 1, "keeps_files": true}' + ENDS)
        new.until_ready()


def check_untouched(again: Again, folder: Path, workers: str) -> None:
    """One that is refused at the last moment has accepted nobody: who waits is left to the proxy that goes on."""
    address = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        meeting = stack.enter_context(socket.socket(socket.AF_UNIX))
        meeting.bind(str(folder / "takeover"))
        meeting.listen()
        clients = stack.enter_context(socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))))
        new = again("--listen", address, "--workers", workers, ready=False)
        visitor = stack.enter_context(meeting.accept()[0])
        visitor.settimeout(30)
        visitor.recv(1)
        told = json.dumps({"is": "clients", "address": address}).encode()
        socket.send_fds(visitor, [told], [clients.fileno()])
        visitor.recv(1)
        visitor.sendall(b'{"is": "all", "version": 1, "keeps_files": true}')
        waiting = [stack.enter_context(Raw(clients.getsockname(), 20)) for _ in range(4)]
        while (word := visitor.recv(1)) != SERVES:
            assert word == STARTS, new.process.output
        visitor.sendall(GIVES_UP)
        until(partial(has_ended, new))
        assert new.process.wait() == 2
        clients.settimeout(5)
        for client in waiting:
            accepted = stack.enter_context(clients.accept()[0])
            client.send_command("PING")
            accepted.recv(100)
            accepted.sendall(b"+PONG\r\n")
        assert [client.reply() for client in waiting] == [b"+PONG\r\n"] * len(waiting)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_one_that_is_refused_has_accepted_nobody(again: Again, tmp_path: Path, workers: str) -> None:
    check_untouched(again, tmp_path, workers)


def check_silent(again: Again, folder: Path, how: str) -> None:
    """Whoever comes and says nothing holds up the next one for a bounded time."""
    paths = Paths(folder)
    old = again(*paths.flags)
    stack = ExitStack()
    with stack:
        if how == "stranger":
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.connect(str(paths.takeover))
            bound = STEP_SECONDS
        else:
            found = visit(paths)
            stack.callback(forget, found)
            bound = SILENT_SECONDS
        began = time.monotonic()
        new = again(*paths.flags)
        assert time.monotonic() - began > bound - 1
        until(lambda: ended_well(old))
        assert said(old, "takeover given up: the other process does not respond")
        paths.check_served()
        if how != "stranger":
            told = ""
            try:
                asyncio.run(found.relieve())
            except SettingsError as error:
                told = str(error)
            assert "keeps its sockets" in told
            assert not said(new, "handed over to another process")
    paths.check_served()


@pytest.mark.parametrize("how", ["stranger", "visitor"])
def test_a_silent_visitor_holds_up_nobody(again: Again, tmp_path: Path, how: str) -> None:
    check_silent(again, tmp_path, how)


def check_without_files(again: Again, folder: Path) -> None:
    """Who comes while the running proxy may open no file waits, costs it nothing, and takes over afterwards."""
    old = again()
    process = psutil.Process(old.pid)
    with old.connect() as client, socket.socket(socket.AF_UNIX) as visitor:
        assert client.command("PING") == b"+PONG\r\n"
        limits = process.rlimit(resource.RLIMIT_NOFILE)
        used = max(int(file.name) for file in Path(f"/proc/{old.pid}/fd").iterdir()) + 1
        process.rlimit(resource.RLIMIT_NOFILE, (used, limits[1]))
        # What is free below the limit is used up by clients, who wait in the queue beyond.
        others = [old.connect() for _ in range(used)]
        try:
            old.process.line(lambda line: "cannot accept clients" in line)
            visitor.connect(str(folder / "takeover"))
            old.process.line(lambda line: "cannot accept the next process" in line)
            before = sum(process.cpu_times()[:2])
            time.sleep(1)  # what is measured is how much it does when there is nothing that it can do
            assert sum(process.cpu_times()[:2]) - before < 0.3
            assert client.command("PING") == b"+PONG\r\n"
        finally:
            process.rlimit(resource.RLIMIT_NOFILE, limits)
            for other in others:
                other.close()
    assert sum(line["event"].startswith("cannot accept the next process") for line in old.log()) == 1
    new = again()
    until(lambda: ended_well(old))
    assert new.command("PING") == b"+PONG\r\n"


def test_who_comes_while_there_is_no_file_left_waits(again: Again, tmp_path: Path) -> None:
    check_without_files(again, tmp_path)


def test_a_slow_start_is_waited_for(again: Again, tmp_path: Path) -> None:
    """For longer than a silent one is, as there are signs; and who comes meanwhile has its turn behind it."""
    paths = Paths(tmp_path)
    old = again(*paths.flags)
    slow = starting(again, paths)
    began = time.monotonic()
    third = again(*paths.flags, ready=False)
    while time.monotonic() - began < SILENT_SECONDS + 3:
        paths.check_served()
        assert not said(third, "admin port open")
        time.sleep(0.2)
    assert not said(old, "takeover given up: the other process does not respond")
    slow.process.kill()
    third.until_ready()
    until(lambda: ended_well(old))
    paths.check_served()


def test_who_was_stopped_finds_that_another_serves(again: Again, tmp_path: Path) -> None:
    """A proxy that is stopped, and told of its end meanwhile, finds what the new one has said."""
    paths = Paths(tmp_path)
    old = again(*paths.flags)
    found = visit(paths)
    halt(old.process.pid)
    asyncio.run(found.relieve())
    os.kill(old.process.pid, signal.SIGTERM)
    os.kill(old.process.pid, signal.SIGCONT)
    until(lambda: ended_well(old))
    assert said(old, "handed over to another process") or said(old, "listening sockets handed to the new process")
    assert paths.there() == ALL
    forget(found)


@pytest.mark.parametrize("queued", [False, True], ids=["met", "queued"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_waits_for_its_turn_ends_when_told_to(
    again: Again, tmp_path: Path, number: signal.Signals, queued: bool
) -> None:
    check_told_while_it_waits(again, tmp_path, number, queued=queued)


def check_told_while_it_waits(again: Again, folder: Path, number: signal.Signals, *, queued: bool) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / "takeover"))
        listener.listen(0)
        if queued:
            fill(folder / "takeover")
        new = again(ready=False)
        if queued:
            until(partial(has_come, new))
        else:
            visitor = stack.enter_context(listener.accept()[0])
            assert visitor.recv(1) == NEXT
        new.process.send_signal(number)
        until(partial(has_ended, new))
        assert new.process.wait() == 0, new.process.output
        assert (folder / "takeover").exists()


def has_come(proxy: Proxy) -> bool:
    """Whether a process that starts has a Unix socket: for the proxy that it is to replace."""
    return proxy.process.ended or bool(psutil.Process(proxy.process.pid).net_connections("unix"))


def fill(path: Path) -> None:
    """Fill the queue of a listening socket; it stays so, although all that are in it leave."""
    with ExitStack() as stack:
        while True:
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            try:
                one.connect(str(path))
            except BlockingIOError:
                return


def test_whoever_finds_the_queue_full_waits(again: Again, tmp_path: Path) -> None:
    check_a_full_queue(again, tmp_path)


def check_a_full_queue(again: Again, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "takeover"))
        listener.listen(0)
        fill(folder / "takeover")
        new = again(ready=False)
        until(partial(has_come, new))
        answered = False
        while not answered:
            assert not new.process.ended, new.process.output
            listener.settimeout(20)
            with listener.accept()[0] as visitor:
                if answered := visitor.recv(1) == NEXT:
                    visitor.sendall(b'{"is": "all", "version": 1, "keeps_files": true}' + ENDS)
    new.until_ready()


def test_words_out_of_turn_end_a_visit(again: Again, tmp_path: Path) -> None:
    old = again()
    for words in (SERVES, STARTS, NEXT + SERVES, NEXT + STARTS, b"x"):
        with socket.socket(socket.AF_UNIX) as visitor:
            visitor.settimeout(10)
            visitor.connect(str(tmp_path / "takeover"))
            visitor.sendall(words)
            while visitor.recv(4096):
                pass
    assert old.command("PING") == b"+PONG\r\n"


# Under load.


class Load:
    """Clients that connect all the time, some that block, and some that stay.

    Args:
        port: of the proxy.
        clients: how many.
    """

    def __init__(self, port: int, clients: int) -> None:
        self.counts: Counter[str] = Counter()
        self.troubles: list[str] = []
        self._port = port
        self._clients = clients
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def has_passed(self, count: int) -> bool:
        return self.counts["short"] > count

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join(60)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        kinds = [self._short] * 7 + [self._blocks] * 2 + [self._stays]
        await asyncio.gather(*(kinds[number % 10](number) for number in range(self._clients)))

    async def _short(self, number: int) -> None:
        turn = 0
        while not self._stopped.is_set():
            turn += 1
            token = b"%d-%d" % (number, turn)
            await self._once(request("ECHO", token), b"$%d\r\n%b\r\n" % (len(token), token), "short")
            await asyncio.sleep(0.05)

    async def _blocks(self, number: int) -> None:
        while not self._stopped.is_set():
            await self._once(request("BLPOP", f"none:{number}", 1), b"*-1\r\n", "blocked")

    async def _once(self, words: bytes, wanted: bytes, kind: str) -> None:
        """Connect, ask, and see that the reply comes."""
        reply = b""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(words)
            try:
                reply = await asyncio.wait_for(reader.readexactly(len(wanted)), 60)
            finally:
                writer.close()
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.troubles.append(f"{kind}: {error!r}")
        if reply not in (wanted, b""):
            self.troubles.append(f"{kind}: {reply!r} for {words!r}")
        self.counts[kind] += 1

    async def _stays(self, number: int) -> None:
        """Stay connected; who is disconnected between two requests comes back, as after any restart."""
        turn = 0
        while not self._stopped.is_set():
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError as error:
                self.troubles.append(f"stays: {error!r}")
                continue
            while not self._stopped.is_set():
                turn += 1
                token = b"%d+%d" % (number, turn)
                wanted = b"$%d\r\n%b\r\n" % (len(token), token)
                try:
                    writer.write(request("ECHO", token))
                    reply = await asyncio.wait_for(reader.readexactly(len(wanted)), 30)
                except (OSError, asyncio.IncompleteReadError):
                    self.counts["came back"] += 1
                    break
                if reply != wanted:
                    self.troubles.append(f"stays: {reply!r} for {token!r}")
                self.counts["stayed"] += 1
                await asyncio.sleep(0.02)
            writer.close()


def check_restarts(again: Again, restarts: int, clients: int, *arguments: str) -> None:
    """Restart a proxy under load; print figures."""
    proxies = [again(*arguments)]
    assert not isinstance(proxies[0].address, Path)
    load = Load(proxies[0].address[1], clients)
    with load.running():
        until(lambda: load.counts["short"] > clients)
        began = time.monotonic()
        for number in range(restarts):
            count = load.counts["short"]
            proxies.append(again(*arguments))
            until(partial(ended_well, proxies[number]), 30, "an end of the old proxy")
            until(partial(load.has_passed, count), 30, "replies of the new one")
        seconds = time.monotonic() - began
    print(f"{restarts} restarts in {seconds:.0f} s, {clients} clients: {dict(load.counts)}, {load.troubles[:5]}")
    assert load.troubles == []


def test_restarts_under_load_refuse_nobody(again: Again) -> None:
    check_restarts(again, 4, 60)


def test_restarts_of_workers_under_load_refuse_nobody(again: Again) -> None:
    check_restarts(again, 1, 30, "--workers", "2")


@pytest.mark.long
@pytest.mark.parametrize("workers", ["1", "2"])
def test_fifty_restarts_under_load_refuse_nobody(again: Again, workers: str) -> None:
    check_restarts(again, 50, 200, "--workers", workers)


# systemd's sockets.


class Guarded(servers.Guarded):
    """A command that inherits files, with its guard."""

    def __init__(self, command: list[str], env: dict[str, str], files: list[int]) -> None:
        words = [sys.executable, "-I", "-S", str(GUARD), "0", "", *command]
        pipe = subprocess.PIPE
        subprocess.Popen.__init__(
            self, words, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env=env, pass_fds=files
        )  # fmt: skip


def activated(server: Server, sockets: list[tuple[str, socket.socket]], *arguments: str) -> Process:
    """Start a proxy that gets its sockets as systemd gives them.

    Args:
        server: the upstream.
        sockets: names and sockets, in their order.
        arguments: of the proxy.
    """
    # They become the files 3 and so on of the process, whose number only a shell knows that it is to run in.
    files = [fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 50) for _, one in sockets]
    moves = " ".join(f"{3 + place}<&{file} {file}<&-" for place, file in enumerate(files))
    names = ":".join(name for name, _ in sockets)
    env = proxy_environment({"LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": names})
    words = [sys.executable, "-m", "proxy", "--upstream", server.url, "--log-format", "json", *arguments]
    command = ["bash", "-c", f'exec {moves}; LISTEN_PID=$$ exec "$@"', "bash", *words]
    try:
        return Process(command, env, guard=Guarded(command, env, files))
    finally:
        for file in files:
            os.close(file)


def bound(path: Path | None = None) -> socket.socket:
    """A socket that listens."""
    one = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX)
    one.bind(("127.0.0.1", free_port()) if path is None else str(path))
    one.listen(1024)
    return one


@pytest.fixture
def units(server: Server) -> Iterator[Callable[..., Process]]:
    """Starts proxies as `activated` does."""
    with ExitStack() as stack:

        def start(sockets: list[tuple[str, socket.socket]], *arguments: str) -> Process:
            process = activated(server, sockets, *arguments)
            stack.callback(process.kill)
            return process

        yield start


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_proxy_serves_at_the_sockets_that_systemd_has_bound(
    units: Callable[..., Process], tmp_path: Path, workers: str
) -> None:
    """Instead of at what its settings say; the files of Unix sockets are systemd's."""
    with bound() as tcp, bound(tmp_path / "clients") as path, bound() as admin:
        given = [("expiremember-proxy.socket", tcp), ("expiremember-proxy.socket", path), ("admin", admin)]
        process = units(given, "--workers", workers, "--listen", "127.0.0.1:1")
        line = process.line(is_ready)
        assert f'"listen": ["127.0.0.1:{tcp.getsockname()[1]}", "unix://{tmp_path}/clients"]' in line
        for place in (tcp.getsockname(), tmp_path / "clients"):
            with Raw(place) as client:
                assert client.command("PING") == b"+PONG\r\n"
        until(lambda: Admin(admin.getsockname()).ask("/readyz")[0] == 200)
        assert process.end() == 0
        assert (tmp_path / "clients").exists()
        # Nobody is refused while none runs: who comes waits for the next one.
        with Raw(tcp.getsockname()) as client:
            client.send_command("PING")
            assert client.silent(0.1)
            units(given, "--workers", workers)
            assert client.reply() == b"+PONG\r\n"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sockets_of_systemd_that_are_no_longer_wanted_are_its(
    units: Callable[..., Process], again: Again, tmp_path: Path, workers: str
) -> None:
    with bound() as tcp, bound(tmp_path / "clients") as path:
        takeover = ("--takeover", str(tmp_path / "takeover"), "--workers", workers)
        old = units([("x", tcp), ("x", path)], *takeover)
        old.line(is_ready)
        again("--listen", f"127.0.0.1:{tcp.getsockname()[1]}", "--workers", workers)
        assert old.wait() == 0
        assert (tmp_path / "clients").exists()
        with Raw(tmp_path / "clients") as client:
            client.send_command("PING")
            path.settimeout(5)
            path.accept()[0].close()


@pytest.mark.parametrize("spelt", ["alike", "twice a slash", "by a link"])
def test_what_systemd_has_bound_anew_is_not_removed(
    units: Callable[..., Process], again: Again, tmp_path: Path, spelt: str
) -> None:
    """However the address of the old one is spelt."""
    paths = Paths(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    where = {"alike": "", "twice a slash": "/", "by a link": "/link"}[spelt]
    old = again("--listen", f"unix://{tmp_path}{where}/clients", *paths.flags[2:])
    paths.clients.unlink()
    with bound(paths.clients) as path:
        process = units([("x", path)], "--takeover", str(paths.takeover))
        process.line(is_ready)
        until(lambda: ended_well(old))
        assert paths.there() == ["clients", "takeover"]  # the admin port was the old one's alone
        assert process.end() == 0
        assert paths.there() == ["clients"]


def test_clients_speak_tls_at_a_socket_of_that_name(units: Callable[..., Process], tmp_path: Path) -> None:
    files = Files(tmp_path)
    mine = flags(listen_tls_cert_file=files.server.file, listen_tls_key_file=files.server.key)
    with bound() as plain, bound() as tls:
        process = units([("x", plain), ("tls", tls)], *mine)
        assert f"tls://127.0.0.1:{tls.getsockname()[1]}" in process.line(is_ready)
        host, port = tls.getsockname()
        with redis.Redis(host, port, ssl=True, ssl_ca_certs=str(files.authority.file)) as client:
            assert client.ping()


@pytest.mark.parametrize("case", ["admin alone", "two for admin", "no socket", "datagrams", "abstract"])
def test_sockets_of_systemd_that_cannot_be_used_are_refused(
    units: Callable[..., Process], tmp_path: Path, case: str
) -> None:
    with (
        bound() as one, bound() as two, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.socket() as silent, socket.socket(socket.AF_UNIX) as abstract,
    ):  # fmt: skip
        abstract.bind(f"\0expiremember-{os.getpid()}")
        abstract.listen()
        given, told = {
            "admin alone": ([("admin", one)], "admin port only"),
            "two for admin": ([("x", one), ("admin", two), ("admin", one)], "several sockets"),
            "no socket": ([("x", silent)], "ListenStream="), "datagrams": ([("x", datagrams)], "ListenStream="),
            "abstract": ([("x", abstract)], "no absolute path"),
        }[case]  # fmt: skip
        process = units(given)
        assert process.wait() == 2, process.output
        assert told in process.output
        assert "\n" not in process.output


def test_a_socket_that_is_not_for_this_process_is_left() -> None:
    own = str(os.getpid())
    for environment in ({}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": own, "LISTEN_FDS": "0"}):
        assert from_manager(environment) is None
        assert environment == {}


def check_restarts_of_units(units: Callable[..., Process], restarts: int, clients: int, *arguments: str) -> None:
    """Restart a unit under load, as `systemctl restart` does: the next starts when the one before has ended."""
    with bound() as listener:
        given = [("expiremember-proxy.socket", listener)]
        process = units(given, *arguments)
        process.line(is_ready, 60)
        load = Load(listener.getsockname()[1], clients)
        with load.running():
            until(lambda: load.counts["short"] > clients)
            began = time.monotonic()
            for _ in range(restarts):
                count = load.counts["short"]
                assert process.end() == 0
                process = units(given, *arguments)
                process.line(is_ready, 60)
                until(partial(load.has_passed, count), 30, "replies of the new one")
            seconds = time.monotonic() - began
    print(
        f"{restarts} restarts of a unit in {seconds:.0f} s, {clients} clients: {dict(load.counts)}, {load.troubles[:5]}"
    )
    assert load.troubles == []


def test_restarts_of_a_unit_under_load_refuse_nobody(units: Callable[..., Process]) -> None:
    check_restarts_of_units(units, 2, 40)


@pytest.mark.long
@pytest.mark.parametrize("workers", ["1", "2"])
def test_fifty_restarts_of_a_unit_under_load_refuse_nobody(units: Callable[..., Process], workers: str) -> None:
    check_restarts_of_units(units, 50, 200, "--workers", workers)
