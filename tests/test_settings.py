"""The settings have one source: the shipped configuration and the help text say what `Settings` says."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.cli import command, main
from proxy.settings import Settings, SettingsError, TCPAddress, load, misspelt, parse_address, unit
from tests.conftest import StartProxy
from tests.servers import ROOT, Server
from tools import settings_reference

SHIPPED = ROOT / "config" / "proxy.toml"


def test_the_generated_files_say_what_the_settings_say() -> None:
    again = "run python -m tools.settings_reference"
    assert SHIPPED.read_text("utf-8") == settings_reference.shipped_file(), again
    assert (ROOT / "docs" / "configuration.md").read_text("utf-8") == settings_reference.page(), again
    assert len(settings_reference.CHARTS) == 2
    for chart in settings_reference.CHARTS:
        assert (chart / "values.schema.json").read_text("utf-8") == settings_reference.chart_schema(), again


def test_the_shipped_configuration_has_every_setting_with_its_default() -> None:
    written = tomllib.loads(SHIPPED.read_text("utf-8"))
    lines = SHIPPED.read_text("utf-8").splitlines()
    for name, field in Settings.model_fields.items():
        if field.default is None:
            assert f'# {name} = ""' in lines
        else:
            assert written.pop(name) == field.default
    assert written == {}


def test_every_number_has_a_unit() -> None:
    for name, field in Settings.model_fields.items():
        assert (field.annotation in (int, float)) == (unit(field) is not None), name


def test_the_shipped_configuration_loads() -> None:
    assert load({}, SHIPPED).model_dump() == load({}, None).model_dump()


def test_the_help_names_every_setting() -> None:
    shown = " ".join(CliRunner().invoke(command(), ["--help"]).output.split())
    for name, field in Settings.model_fields.items():
        assert "--" + name.replace("_", "-") in shown
        assert field.description is not None
        assert field.description in shown


def test_flags_over_environment_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text('log_level = "error"\nsweep_batch = 1\nprefix = "file:"\nlisten = ["a:1", "b:2"]\n')
    monkeypatch.setenv("EXPIREMEMBER_SWEEP_BATCH", "2")
    monkeypatch.setenv("EXPIREMEMBER_PREFIX", "environment:")
    settings = load({"prefix": "flag:"}, file)
    assert (settings.log_level, settings.sweep_batch, settings.prefix) == ("error", 2, "flag:")
    assert settings.listen == ["a:1", "b:2"]
    monkeypatch.setenv("EXPIREMEMBER_LISTEN", "c:3, unix:///d")
    assert load({}, file).listen == ["c:3", "unix:///d"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"listen": ["nowhere"]},
            "listen: 'nowhere' is not an address: use host:port (such as 127.0.0.1:6380), tls://",
        ),
        ({"listen": ["h:99999"]}, "listen: 'h:99999': port 99999 is greater than 65535"),
        ({"admin": "h:99999"}, "admin: 'h:99999': port 99999 is greater than 65535"),
        ({"admin": "9121"}, "admin: '9121' is not an address: use host:port (127.0.0.1:9121) or unix:///path"),
        ({"upstream": "http://x"}, "upstream: must begin with redis://"),
        ({"upstream": "redis://h:1/zero"}, "upstream: the database"),
        ({"upstream": "unix://"}, "upstream: names no socket"),
        ({"sweep_batch": "many"}, "sweep_batch: 'many' is not a whole number (members)"),
        ({"sweep_batch": 0}, "sweep_batch: 0 is not at least 1 (members)"),
        ({"sweep_batch": 6000}, "sweep_batch: 6000 is not at most 5,000 (members)"),
        ({"connect_timeout": "1h"}, "connect_timeout: '1h' is not a number (seconds)"),
        ({"connect_timeout": 0}, "connect_timeout: 0 is not more than 0 (seconds)"),
        ({"held_limit": "1mb"}, "held_limit: '1mb' is not a whole number (bytes)"),
        ({"sweep": "yesno"}, "sweep: 'yesno' is neither true nor false"),
        ({"listen": 6380}, 'listen: 6380 is not a list of addresses: ["127.0.0.1:6380"]'),
        ({"listen": []}, "listen: [] names no address, for example 127.0.0.1:6380"),
        ({"prefix": "a{b}"}, "prefix: 'a{b}' is not 1 to 64 characters without blanks and braces"),
        ({"prefix": 7}, "prefix: 7 is not text"),
        ({"log_level": "loud"}, "log_level: 'loud' is none of debug, info, warning, error"),
        ({"lisen": ["a:1"]}, "lisen: there is no such setting; did you mean listen?"),
        ({"secret": "x"}, "secret: there is no such setting"),
        ({"embedded_dir": "/x"}, "embedded_dir needs embedded"),
        ({"embedded": True, "upstream": "redis://h"}, "use either embedded or upstream, not both"),
        ({"tls_cert_file": "/x"}, "set both tls_cert_file and tls_key_file"),
        ({"listen": ["tls://h:1"]}, "a tls:// address needs listen_tls_cert_file and listen_tls_key_file"),
        ({"listen": ["tls://h"]}, "'tls://h' is not an address"),
        ({"listen_tls_cert_file": "/x"}, "set both listen_tls_cert_file and listen_tls_key_file"),
        ({"listen_tls_cert_file": "/x", "listen_tls_key_file": "/y"}, "need a tls:// address in listen"),
        ({"listen_tls_ca_file": "/x"}, "need a tls:// address in listen"),
        ({"upstream": "redis://:a@h", "upstream_password": "b"}, "more than once: upstream, upstream_password"),
        ({"upstream_password": "a", "upstream_password_file": "/x"}, "the password is given more than once"),
        ({"upstream_password_file": "/x", "embedded": True}, "use either embedded or upstream_password_file, not both"),
        ({"max_clients": -1}, "max_clients: "),
        ({"tcp_keepalive": 40_000}, "tcp_keepalive: "),
    ],
)
def test_a_bad_setting_is_named_in_one_line(flags: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(flags, None)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "nosuch = 1",
        "= broken",
        'listen = "x:1"\nsweep = "perhaps"',
        "listen = " + "[" * 2000,
        "max_clients = " + "9" * 5000,
    ],
    ids=["unknown", "no TOML", "two", "deep", "long"],
)
def test_a_bad_file_is_named_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        load({}, file)
    assert "\n" not in str(error.value)
    with pytest.raises(SettingsError, match="no such file"):
        load({}, tmp_path / "missing.toml")
    with pytest.raises(SettingsError, match=": it is a directory"):
        load({}, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="not a regular file"):
        load({}, tmp_path / "pipe")
    with pytest.raises(SettingsError, match="not a directory"):
        load({}, file / "missing.toml")
    with pytest.raises(SettingsError, match="file name too long"):
        load({}, tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("127.0.0.1:6380", TCPAddress("127.0.0.1", 6380)),
        ("[::1]:1", TCPAddress("::1", 1)),
        ("tls://[::]:6379", TCPAddress("::", 6379, tls=True)),
        ("unix:///run/x.sock", Path("/run/x.sock")),
    ],
)
def test_addresses(address: str, parsed: object) -> None:
    assert parse_address(address) == parsed


@pytest.mark.parametrize("name", ["upstream", "upstream_password"])
def test_a_value_that_may_be_a_password_is_not_repeated(name: str) -> None:
    with pytest.raises(SettingsError) as error:
        load({name: 271828}, None)
    assert "271828" not in str(error.value)
    assert str(error.value).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lisen", "x:1"], "no such option --lisen; did you mean --listen?"),
        (["--zzz"], "no such option --zzz; see --help"),
        (["help"], "No such command 'help'; see --help"),
    ],
)
def test_a_mistyped_flag_gets_no_absurd_suggestion(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["expiremember-proxy", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == f"expiremember-proxy: {said}\n"


def test_the_list_of_commands_is_not_cut_off() -> None:
    shown = CliRunner().invoke(command(), ["--help"]).output
    assert re.search(r"^  check +Check the settings and the server; say what to fix\.$", shown, re.MULTILINE)


def test_only_what_looks_like_a_setting_is_called_misspelt() -> None:
    of_kubernetes = (
        "SERVICE_HOST",
        "SERVICE_PORT",
        "PORT",
        "PORT_6380_TCP",
        "PORT_6380_TCP_ADDR",
        "PROXY_SERVICE_HOST",
    )
    variables = (
        "EXPIREMEMBER_UPSTRAEM",
        "expiremember_max_client",
        "EXPIREMEMBER_LISTEN",
        "EXPIREMEMBER_CONFIG",
        "UPSTRAEM",
    )
    environment = dict.fromkeys([*variables, *(f"EXPIREMEMBER_{name}" for name in of_kubernetes)], "x")
    assert misspelt(environment) == {
        "EXPIREMEMBER_UPSTRAEM": "EXPIREMEMBER_UPSTREAM", "expiremember_max_client": "EXPIREMEMBER_MAX_CLIENTS",
    }  # fmt: skip


def test_a_misspelt_variable_is_warned_of_once(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, "--workers", "2", env={"EXPIREMEMBER_UPSTRAEM": "redis://secret@localhost"})
    said = proxy.process.line(lambda line: "unknown setting in the environment" in line)
    assert "EXPIREMEMBER_UPSTRAEM" in said
    assert "did you mean EXPIREMEMBER_UPSTREAM?" in said
    assert "secret" not in proxy.process.output
    assert proxy.command("PING") == b"+PONG\r\n"
    assert proxy.process.output.count("unknown setting in the environment") == 1
