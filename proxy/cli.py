"""The command line: a flag for each setting, and the subcommands.

Its tests: tests/test_settings.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import structlog
from pydantic.fields import FieldInfo

from proxy import __version__, logs, settings
from proxy.bad_settings import nearest
from proxy.events import options as telling
from proxy.held_signals import StoppedError, release
from proxy.keydb import options as importing
from proxy.listen.given import from_manager
from proxy.loading import loading
from proxy.looking import options as looking
from proxy.settings import Settings, SettingsError
from proxy.status import options as showing

log = structlog.get_logger("proxy.cli")

_INTRODUCTION = """Stand in front of a Redis or Valkey and give single members of sets, hashes, sorted sets and lists a
lifetime: EXPIREMEMBER key member seconds.

\b
  expiremember-proxy --listen 127.0.0.1:6380 --upstream redis://127.0.0.1:6379
  expiremember-proxy --embedded

Point any Redis client at the listening address. Every flag is also an environment variable
(EXPIREMEMBER_LOG_LEVEL for --log-level) and a key of a TOML file; flags override environment variables,
which override the file."""


_CHECK = """Check that the proxy can run with these settings, and say what to fix.

Takes every setting of the proxy. Prints one line per check: ok, warning or failure. The exit status is 1 if there is a
failure, 2 if a setting cannot be used, else 0. Nothing is changed in the server."""
_CHECK_IN_SHORT = "Check the settings and the server; say what to fix."


def _option(name: str, field: FieldInfo) -> click.Option:
    """Create the flag for a setting. Values stay text: `Settings` validates them, whatever their source."""
    flag = "--" + name.replace("_", "-")
    annotation = field.annotation
    keywords: dict[str, Any] = {"help": field.description, "default": None}
    if annotation is bool:
        keywords["help"] += f" [default: {'on' if field.default else 'off'}]"
        declaration = f"{flag}/--no-{flag[2:]}" if field.default else flag
        return click.Option([declaration], is_flag=True, **keywords)
    if get_origin(annotation) is list:
        what = {"cover": "PREFIX", "listen_proxy_protocol": "NETWORKS"}.get(name, "ADDRESS")
        return click.Option([flag], multiple=True, metavar=what, **keywords | {"default": ()})
    if get_origin(annotation) is Literal:
        keywords["metavar"] = "|".join(get_args(annotation))
    elif name == "upstream":
        keywords["metavar"] = "URL"
    elif name == "admin":
        keywords["metavar"] = "ADDRESS"
    elif name.endswith(("_dir", "_file")) or name == "takeover":
        keywords["metavar"] = "PATH"
    elif (unit := settings.unit(field)) is not None:
        keywords["metavar"] = unit.upper()
    if field.default is not None:
        keywords["help"] += f" [default: {field.default}]"
    return click.Option([flag], **keywords)


def _load(config: Path | None, flags: dict[str, Any]) -> Settings:
    """Load the settings. Flags before a subcommand apply to the subcommand too; flags after it override them."""
    context = click.get_current_context()
    while context.parent is not None:
        context = context.parent
        before = dict(context.params)
        config = config or before.pop("config", None)
        flags = before | {name: value for name, value in flags.items() if value not in (None, ())}
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in flags.items()}
    names = Settings.model_fields
    return settings.load({name: given[name] for name in names if given.get(name) not in (None, [])}, config)


def _run(config: Path | None, **flags: Any) -> None:
    if click.get_current_context().invoked_subcommand is not None:
        release()  # a signal may end a subcommand at once
        return
    given = from_manager()
    if given is not None:
        flags["listen"] = tuple(given.clients)
        flags["admin"] = next(iter(given.admin), flags["admin"])
    chosen = _load(config, flags)
    logs.configure(chosen.log_level, chosen.log_format)
    _warn_of_passwords(chosen, flags)
    # Import late, so that --help and errors in settings appear immediately.
    with loading():
        if chosen.workers > 1:
            from proxy.workers.supervisor import run
        else:
            from proxy.server import run
    try:
        code = run(chosen, given)
    except StoppedError:
        log.info("stopped")
        return
    if code:
        sys.exit(code)


def _warn_of_passwords(chosen: Settings, flags: dict[str, Any]) -> None:
    hidden = ("upstream", "upstream_password", "sentinel_password")
    shown = [name for name in hidden if flags.get(name) and chosen.has_password(name)]
    if shown:
        advice = "use upstream_password_file or sentinel_password_file, or the environment"
        log.warning("password on the command line is visible to other users", flag=shown, advice=advice)


def _check(config: Path | None, *, probe: bool, **flags: Any) -> None:
    chosen = _load(config, flags)
    if probe:
        from proxy.check.probe import run as run_probe

        sys.exit(run_probe(chosen.listen, chosen.listen_proxy_protocol))
    from proxy.check.report import run

    sys.exit(run(chosen))


def _import(config: Path | None, **flags: Any) -> None:
    order = importing.take_order(flags)
    chosen = _load(config, flags)
    logs.configure(chosen.log_level, chosen.log_format)
    _warn_of_passwords(chosen, flags)
    from proxy.embedded.running import of_running
    from proxy.keydb.command import run

    sys.exit(run(of_running(chosen), order))


def _load_to_ask(config: Path | None, flags: dict[str, Any]) -> Settings:
    chosen = _load(config, flags)
    logs.configure(chosen.log_level, chosen.log_format)
    _warn_of_passwords(chosen, flags)
    return chosen


def _options(names: Iterable[str] = tuple(Settings.model_fields)) -> list[click.Parameter]:
    """Create the flags: one for each setting, and one for the configuration file."""
    config = click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        envvar=settings.ENVIRONMENT_PREFIX + "CONFIG",
        metavar="FILE",
        help="Read settings from a TOML file.",
    )
    return [*(_option(name, Settings.model_fields[name]) for name in names), config]


def command() -> click.Command:
    """Create the command and its subcommands."""
    help_options = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    made = click.Group(
        "expiremember-proxy",
        params=_options(),
        callback=_run,
        invoke_without_command=True,
        subcommand_metavar="[check|import|events|deadlines|explain|top]",
        help=_INTRODUCTION,
        context_settings=help_options,
    )
    probe = click.Option(
        ["--probe"],
        is_flag=True,
        help="Only test whether the running proxy answers at its listen addresses: for health checks.",
    )
    made.add_command(
        click.Command(
            "check",
            params=[probe, *_options()],
            callback=_check,
            help=_CHECK,
            short_help=_CHECK_IN_SHORT,
            context_settings=help_options,
        )
    )
    made.add_command(
        click.Command(
            "import",
            params=[*importing.options(), *_options(importing.SETTINGS)],
            callback=_import,
            help=importing.HELP,
            context_settings=help_options,
        )
    )
    made.add_command(telling.group(_load_to_ask, _options(telling.SETTINGS), help_options))
    for one in looking.commands(_load_to_ask, _options(looking.SETTINGS), help_options):
        made.add_command(one)
    made.add_command(showing.command(_load, help_options))
    return click.version_option(__version__, prog_name="expiremember-proxy")(made)


def main() -> None:
    """Run the command line; on a bad setting print one line and exit with status 2."""
    try:
        code = command().main(standalone_mode=False)
    except SettingsError as error:
        _fail(str(error))
    except click.NoSuchOption as error:
        meant = nearest(error.option_name, error.possibilities or ())
        _fail(f"no such option {error.option_name}" + (f"; did you mean {meant}?" if meant else "; see --help"))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.UsageError as error:
        _fail(f"{error.format_message().removesuffix('.')}; see --help")
    except click.ClickException as error:
        _fail(error.format_message())
    except click.Abort:
        sys.exit(130)
    sys.exit(code or 0)


def _fail(message: str) -> None:
    print("expiremember-proxy: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)
