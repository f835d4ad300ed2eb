"""The documentation holds: its commands run, its links lead somewhere, its lists are whole."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from proxy.cli import command
from proxy.commands.table import COMMANDS, Effect
from proxy.logs import page_of
from proxy.metrics.table import DECLARATIONS, PREFIX
from proxy.settings import Settings, load
from tests.log_events import log_events
from tests.pages import Block, Page, page, pages
from tests.servers import ROOT, Process, Proxy, Server, free_port, is_ready, proxy_environment

PAGES = pages()
BLOCKS = [block for one in PAGES for block in one.blocks]

SHOWN = frozenset(("mermaid", "text"))
"""Languages of blocks that nobody is meant to run."""


def the(language: str, marker: str | None = None) -> list[Block]:
    """The blocks in a language that are run here, by a test that is for one marker or for blocks without."""
    return [block for block in BLOCKS if block.language == language and block.marker == (marker or "")]


one_kind = pytest.mark.every_kind(valkey=(9, 1))
"""One kind of server is enough: the one that the tests' own requirements bring."""


# Commands.


def test_every_block_is_run_by_a_test() -> None:
    for block in BLOCKS:
        if block.language in SHOWN:
            continue
        if block.marker and block.page in RUN_BY:
            assert f'"{block.marker}"' in (ROOT / RUN_BY[block.page]).read_text("utf-8"), block
            continue
        if block.marker.startswith("tested-by: "):
            path, _, name = block.marker.removeprefix("tested-by: ").partition("::")
            if not name:  # a script: it runs the same commands
                script = (ROOT / path).read_text("utf-8")
                assert all(part.strip() in script for part in block.text.split("&&")), block
                continue
            tree = ast.parse((ROOT / path).read_text("utf-8"))
            functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert name in functions, f"{block}: {block.marker}"
        else:
            assert (block.language, block.marker) in RUN_HERE, f"{block}: which test runs this block?"


RUN_HERE = {("sh", ""), ("sh", "server"), ("sh", "run-command"), ("python", ""), ("toml", ""), ("console", "session")}
RUN_HERE |= {("sh", "test-command")}  # by .ci/run: it is what runs these tests
RUN_HERE |= {("", "control-rules")}  # by tests/test_acl.py: rules for a user

RUN_BY = {
    "docs/clients.md": "tests/libraries.py",
    "docs/testing.md": "tests/container/test_testing_page.py",
}
"""Pages with tests of their own, which run their marked blocks, and where the markers stand."""


def at(text: str, proxy_port: int, server_port: int) -> str:
    """Put the ports of this test in place of those that everybody uses."""
    return text.replace("6380", str(proxy_port)).replace("6379", str(server_port))


def shell(text: str, folder: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=proxy_environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def port_of(one: Proxy) -> int:
    assert not isinstance(one.address, Path)
    return one.address[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what commands name: after an installation, the project's commands are in .venv/bin."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@one_kind
@pytest.mark.parametrize("block", the("sh"), ids=str)
def test_a_command_runs(block: Block, folder: Path, proxy: Proxy, upstream: Server) -> None:
    done = shell(at(block.text, port_of(proxy), upstream.port), folder)
    assert done.returncode == 0, done.stdout + done.stderr


@one_kind
@pytest.mark.parametrize("block", the("sh", "server"), ids=str)
def test_a_command_serves(block: Block, folder: Path, upstream: Server) -> None:
    line = at(block.text, free_port(), upstream.port)
    process = Process(["bash", "-euo", "pipefail", "-c", line], proxy_environment(), folder)
    try:
        process.line(is_ready)
        assert process.end() == 0, process.output
    finally:
        process.kill()


@one_kind
@pytest.mark.parametrize("block", the("python"), ids=str)
def test_a_program_runs(block: Block, tmp_path: Path, proxy: Proxy, upstream: Server) -> None:
    program = tmp_path / "program.py"
    program.write_text(at(block.text, port_of(proxy), upstream.port), "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@one_kind
def test_programs_run_again_and_after_each_other(tmp_path: Path, proxy: Proxy, upstream: Server) -> None:
    """A reader tries one page after another, on one server, and a program twice."""
    (typed,) = [block for block in BLOCKS if block.marker == "redis-py"]
    blocks = [typed, *the("python")]
    program = tmp_path / "program.py"
    for block in (*blocks, *reversed(blocks)):
        program.write_text(at(block.text, port_of(proxy), upstream.port), "utf-8")
        done = subprocess.run(
            [sys.executable, str(program)], cwd=ROOT, env=proxy_environment(), capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}: {done.stderr}"


@pytest.mark.parametrize("block", the("toml"), ids=str)
def test_a_configuration_loads(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text(block.text, "utf-8")
    settings = load({}, file)
    assert settings.model_fields_set >= tomllib.loads(block.text).keys()


@pytest.mark.parametrize("block", the("console", "session"), ids=str)
def test_a_session_prints_what_the_page_prints(block: Block, proxy: Proxy) -> None:
    first, *exchanges = block.text.split("127.0.0.1:6380> ")
    assert first == "$ redis-cli -p 6380\n"
    lines, shown = zip(*(exchange.split("\n", 1) for exchange in exchanges), strict=True)
    # In one process, as a reader does it: on a busy machine a process for each line would take seconds.
    run = subprocess.run(
        ["redis-cli", "--no-raw", "-p", str(port_of(proxy))],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    said = re.sub(r"^\(\d+\.\d\ds\)\n", "", run.stdout, flags=re.M)  # how long a slow command took
    assert said == "".join(shown)


@one_kind
def test_the_command_that_removes_the_proxy_leaves_only_data(folder: Path, upstream: Server) -> None:
    (block,) = [
        block for block in BLOCKS if block.marker.endswith("::test_the_command_that_removes_the_proxy_leaves_only_data")
    ]
    keys = (b"plain", b"with space", b"with'quote", b"with\nnewline", b"with}brace")
    proxy = Proxy("--upstream", upstream.url)
    try:
        for database in (0, 3):
            with proxy.connect() as client:
                client.command("SELECT", database)
                for key in keys:
                    assert client.command("SADD", key, "a", "b") == b":2\r\n"
                    assert client.command("EXPIREMEMBER", key, "a", 600) == b":1\r\n"
    finally:
        proxy.close()
    done = shell(at(block.text, 1, upstream.port), folder)
    assert done.returncode == 0, done.stderr
    for database in (0, 3):
        with upstream.connect() as client:
            client.command("SELECT", database)
            assert client.command("DBSIZE") == b":%d\r\n" % len(keys)
            for key in keys:
                assert client.command("SCARD", key) == b":2\r\n"


@pytest.mark.skipif(not os.environ.get("CI"), reason="installs from a package index: only in CI")
def test_the_first_command_of_the_readme_runs(tmp_path: Path) -> None:
    (block,) = the("sh", "run-command")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "proxy", tmp_path / "proxy", ignore=shutil.ignore_patterns("__pycache__"))
    env = {name: value for name, value in proxy_environment().items() if name != "PYTHONPATH"}
    env["EXPIREMEMBER_LISTEN"] = f"127.0.0.1:{free_port()}"
    process = Process(["bash", "-euo", "pipefail", "-c", block.text], env, tmp_path)
    try:
        process.line(is_ready, timeout=180)
    finally:
        process.kill()


def test_every_command_of_the_proxy_is_in_the_readme() -> None:
    section = page("README.md").text.split("\n## Commands\n")[1].split("\n## ")[0]
    for name, described in COMMANDS.items():
        if described.effect in (Effect.EXPIRE, Effect.LIFETIME):
            assert f"`{name.decode()} key member" in section


# Commands and flags amid the text.


def options(module: str) -> str:
    """What a module's --help says."""
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout


def test_commands_amid_the_text_exist() -> None:
    lines = {line for one in PAGES for line in one.inline if line.startswith("python -m ")}
    assert lines
    for line in sorted(lines):
        module, *arguments = line.split()[2:]
        said = options(module)
        for argument in arguments:
            if argument.startswith("--"):
                assert argument.split("=")[0] in said, line


def test_flags_amid_the_text_exist() -> None:
    commands = [command()]
    for found in commands:
        commands += found.commands.values() if isinstance(found, click.Group) else ()
    parameters = [parameter for found in commands for parameter in found.params]
    own = {flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    assert "--embedded" in own
    others = {*re.findall(r"--[a-z-]+", options("benchmarks.relay") + options("benchmarks.lateness")), "--long"}
    for one in PAGES:
        for text in one.inline:
            words = text.split()
            if words[0] == "expiremember-proxy":
                assert {word for word in words if word.startswith("--")} <= own, f"{one.path}: {text}"
            elif words[0].startswith("--"):
                assert set(words[0].split("=")[0].split("/")) <= own | others, f"{one.path}: {text}"


def test_a_page_with_bare_commands_says_how_the_shell_finds_them() -> None:
    """An installation in .venv is not on the PATH."""
    for one in PAGES:
        if any(re.search(r"^expiremember-proxy ", block.text, re.M) for block in one.blocks):
            assert "`. .venv/bin/activate`" in one.text, one.path
    for path in sorted((ROOT / "docs").rglob("*.py")):
        if "    expiremember-proxy " in path.read_text("utf-8"):
            assert "`. .venv/bin/activate`" in page(str(path.relative_to(ROOT).with_name("README.md"))).text


def test_settings_amid_the_text_exist() -> None:
    for one in PAGES:
        for name in re.findall(r"\bEXPIREMEMBER_([A-Z_]+)\b", one.text):
            assert name == "CONFIG" or name.lower() in Settings.model_fields, f"{one.path}: {name}"


# What pages name.


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.path)
def test_links_lead_somewhere(one: Page) -> None:
    for link in one.links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / one.path).parent / path if path else ROOT / one.path
        assert target.exists(), link
        if anchor:
            assert anchor in page(str(target.resolve().relative_to(ROOT))).anchors, link


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.path)
def test_files_that_are_named_exist(one: Page) -> None:
    for text in one.inline:
        if re.fullmatch(r"(?:proxy|tests|docs|config|benchmarks|tools|\.ci)/[\w./-]*", text):
            assert (ROOT / text).exists(), text


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        path = waiting.pop()
        if path in reached or path.suffix != ".md":
            continue
        reached.add(path)
        links = page(str(path.relative_to(ROOT))).links
        waiting += [
            (path.parent / link.partition("#")[0]).resolve() for link in links if not re.match(r"[a-z]+:|#", link)
        ]
    assert {ROOT / one.path for one in PAGES} - reached == set()


# docs/operations.md.

OPERATIONS = page("docs/operations.md")


def test_every_log_event_is_explained_and_no_other() -> None:
    events = log_events(ROOT / "proxy")
    assert len(events) > 30
    loud = {event for event, levels in events.items() if levels & {"warning", "error", "critical", "exception"}}
    section = OPERATIONS.text.split("\n## Warnings and errors\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^### (.+)$", section, re.M)) == loud
    rows = re.findall(
        r"^\| `([^`]+)` \| ([a-z, ]+) \|", OPERATIONS.text.split("\n## Other events\n")[1].split("\n## ")[0], re.M
    )
    quiet = {event: levels & {"info", "debug"} for event, levels in events.items() if levels & {"info", "debug"}}
    assert {event: set(levels.split(", ")) for event, levels in rows} == quiet


def test_a_warning_names_its_section() -> None:
    for event, levels in log_events(ROOT / "proxy").items():
        if levels & {"warning", "error"}:
            path, _, anchor = page_of(event).partition("#")
            assert path == OPERATIONS.path
            assert anchor in OPERATIONS.anchors, event


def test_events_are_fixed_lower_case_phrases() -> None:
    for event in log_events(ROOT / "proxy"):
        assert re.fullmatch(r"[^%{}.;]+", event), event
        for word in event.split():
            assert word.islower() or word in ("TLS", "COMMAND", "Redis", "Valkey") or word.isdecimal(), event


def test_every_metric_is_explained_and_no_other() -> None:
    section = OPERATIONS.text.split("\n## Metrics\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\w*) *\| [^|]+ \| [^|]*\|$", section, re.M)
    assert rows == [(PREFIX + name, one.kind.value, one.label or "") for name, one in DECLARATIONS.items()]


def test_metrics_in_examples_exist() -> None:
    for one in PAGES:
        for name in re.findall(rf"\b{PREFIX}(\w+)", one.text):
            assert re.sub("_bucket$|_sum$|_count$", "", name) in DECLARATIONS, f"{one.path}: {name}"


def test_every_error_to_clients_is_explained() -> None:
    source = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "proxy").rglob("*.py")))
    errors = re.findall(r"\bERR expiremember-proxy: ([^\"{%\\;']+)", source)
    assert len(errors) >= 7
    section = OPERATIONS.text.split("\n## What clients see\n")[1].split("\n## ")[0]
    for error in errors:
        beginning = " ".join(error.split()[:6])
        assert beginning in section, error
    assert source.count("ERR expiremember-proxy: ") == len(errors)


def test_a_warning_in_the_log_says_where_to_read_about_it() -> None:
    proxy = Proxy("--upstream", f"redis://127.0.0.1:{free_port()}")
    try:
        (warning,) = (line for line in proxy.log() if line["level"] == "warning")
        assert warning["see"] == "docs/operations.md#no-control-connection-to-the-upstream"
        assert all("see" not in line for line in proxy.log() if line["level"] == "info")
    finally:
        proxy.close()


# docs/glossary.md.


TERMS = """
    adder, alarm, announce, background pass, blind, board, buffer, clearance, control connection, covered,
    covered prefix, deadline, due, effect, engine, entry, fence, first deadline, form, front, guarded read,
    head, hold, identity, index, joint, late, lease, life, member, on its way, outlook, pipeline, question,
    rule, session, settle, shadow, shared connection, sign, stay, store, stranger, sweep, sweeper's lease,
    tracker, trail, turn, upstream, vigil, void, worker
"""
"""What the code says, and nobody knows without having read what it means here."""


def test_the_glossary_defines_every_term() -> None:
    terms = {" ".join(term.split()) for term in TERMS.split(",")}
    assert terms <= {heading.lower() for heading in page("docs/glossary.md").headings}


def test_the_glossary_defines_nothing_else() -> None:
    """A term that stands nowhere else is none."""
    folders = ((ROOT / "proxy").rglob("*.py"), (ROOT / "docs").rglob("*.md"))
    texts = (path.read_text("utf-8").lower() for folder in folders for path in folder if path.name != "glossary.md")
    corpus = " ".join(" ".join(text.split()) for text in texts)
    terms = [heading.lower() for heading in page("docs/glossary.md").headings[1:]]
    assert len(terms) == len(set(terms))
    assert [term for term in terms if term not in corpus] == []
