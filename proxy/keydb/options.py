"""The options of the subcommand `import`.

Its tests: tests/test_import.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import click
from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from proxy.settings import ENVIRONMENT_PREFIX, SENTINEL_SETTINGS, Settings, SettingsError, reasons
from proxy.upstream.address import parse_upstream

SETTINGS: Final = (
    "upstream",
    "upstream_password",
    "upstream_password_file",
    *SENTINEL_SETTINGS,
    "prefix",
    "tls_ca_file",
    "tls_cert_file",
    "tls_key_file",
    "tls_verify",
    "connect_timeout",
    "control_timeout",
    "log_level",
    "log_format",
)
"""The proxy's settings that apply to an import."""

HELP: Final = """Import member deadlines from KeyDB into a Redis or Valkey that already has the data.

\b
  expiremember-proxy import --rdb dump.rdb --upstream redis://127.0.0.1:6379
  expiremember-proxy import --from redis://keydb:6379 --upstream redis://127.0.0.1:6379

The source, an RDB file or a running KeyDB, is only read. Nothing is set until all of it has been read and its checksum
is correct. Members whose deadlines have passed are removed, as KeyDB would have removed them. The import can be
repeated, and proxies in front of the server may run meanwhile. If --upstream is a proxy, the server behind it is
used.

The exit status is 0 if no deadline is missing, 3 if some could not be set, 1 if the import stopped before the end, 2 if
an option or a setting cannot be used. docs/moving-from-keydb.md describes the whole move."""


class _SourceSettings(Settings):
    """The settings of the source server: only those passed as arguments."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *others: Any, **more: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Ignore environment and file, because their settings are for the upstream."""
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class Order:
    """The import that the options describe.

    Attributes:
        rdb: the file, or "-" for standard input; None if the source is a server.
        server: the settings of the source server; None if the source is a file.
        dry_run: whether to change nothing.
        verify: whether to compare all deadlines at the end.
    """

    rdb: str | None
    server: Settings | None
    dry_run: bool
    verify: bool

    @property
    def name(self) -> str:
        """The name of the source, for messages."""
        return "standard input" if self.rdb == "-" else self.rdb or "the RDB file of the server"


_FROM: Final = {
    "from_": "upstream",
    "from_password": "upstream_password",
    "from_password_file": "upstream_password_file",
    "from_tls_ca_file": "tls_ca_file",
    "from_tls_cert_file": "tls_cert_file",
    "from_tls_key_file": "tls_key_file",
    "from_tls_verify": "tls_verify",
}
"""Option → the setting with the same meaning for the upstream."""


def options() -> list[click.Parameter]:
    """Create the options that are not settings."""

    def of(flag: str, text: str, **more: Any) -> click.Option:
        name = flag.split("/")[0].removeprefix("--").replace("-", "_")
        return click.Option(
            [flag, name + "_" * (name == "from")],
            help=text,
            envvar=ENVIRONMENT_PREFIX + name.upper() if name.startswith("from") else None,
            **more,
        )

    return [
        of("--rdb", "RDB file of a KeyDB; - reads standard input.", metavar="FILE|-"),
        of(
            "--from",
            "KeyDB to request an RDB file from, as a replica does: redis://, rediss:// or unix://.",
            metavar="URL",
        ),
        of("--dry-run", "Change nothing; report what an import would do.", is_flag=True),
        of("--verify", "Read every deadline back at the end and compare.", is_flag=True),
        of("--from-password", "Password for --from. Everybody on the machine can see flags.", metavar="TEXT"),
        of("--from-password-file", "File with the password for --from.", metavar="PATH"),
        of("--from-tls-ca-file", "Certificates that a rediss:// --from is checked against.", metavar="PATH"),
        of("--from-tls-cert-file", "Certificate to show to a rediss:// --from.", metavar="PATH"),
        of("--from-tls-key-file", "Private key of --from-tls-cert-file.", metavar="PATH"),
        of(
            "--from-tls-verify/--no-from-tls-verify",
            "Check the certificate and the name of a rediss:// --from. [default: on]",
            default=None,
        ),
    ]


def take_order(given: dict[str, Any]) -> Order:
    """Take the import's own options out of `given`, and return them as an order. Settings stay in `given`.

    Raises:
        SettingsError: the options contradict each other or are invalid.
    """
    of_server = {setting: given.pop(option) for option, setting in _FROM.items()}
    order = Order(given.pop("rdb"), None, given.pop("dry_run"), given.pop("verify"))
    if (order.rdb is None) == (of_server["upstream"] is None):
        raise SettingsError("import: give one of --rdb and --from")
    if order.rdb is not None:
        return order
    try:
        server = _SourceSettings(**{name: value for name, value in of_server.items() if value is not None})
    except ValidationError as error:
        raise of_source("; ".join(reasons(error))) from None
    if parse_upstream(server.upstream).sentinels:
        raise SettingsError("import: --from: Sentinels are not supported here; give the server's address")
    return Order(None, server, order.dry_run, order.verify)


def of_source(text: str) -> SettingsError:
    """Turn an error about an upstream setting into one about the source's option."""
    for option, setting in sorted(_FROM.items(), key=lambda pair: -len(pair[1])):
        text = text.replace(setting, "--" + option.strip("_").replace("_", "-").replace("from", "\0"))
    return SettingsError("import: " + text.replace("\0", "from"))
