"""All settings, with defaults, bounds, units and one-line descriptions. They are defined only here.

Its tests: tests/test_settings.py.
"""

from __future__ import annotations

import stat
import sys
import tomllib
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from proxy.addresses import DEFAULT_LISTEN, split_addresses
from proxy.addresses import TCPAddress as TCPAddress
from proxy.addresses import parse_address as parse_address
from proxy.bad_settings import describe, nearest
from proxy.coverage.prefixes import LONGEST
from proxy.upstream.address import parse_upstream

ENVIRONMENT_PREFIX = "EXPIREMEMBER_"

_SECONDS: Final[JsonDict] = {"unit": "seconds"}
_BYTES: Final[JsonDict] = {"unit": "bytes"}
_HIDDEN: Final = frozenset(("upstream", "upstream_password", "sentinel_password"))

SENTINEL_SETTINGS: Final = ("sentinel_user", "sentinel_password", "sentinel_password_file")
"""The settings for logging in to Sentinels."""


class SettingsError(Exception):
    """A setting is invalid. The text is one line: which setting, and why."""


class Settings(BaseSettings):
    """The settings. Flags override environment variables, which override the configuration file."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True)

    listen: Annotated[list[str], NoDecode] = Field(
        default=list(DEFAULT_LISTEN),
        min_length=1,
        description="Address to accept clients on: host:port, tls://host:port or unix:///path. Repeatable.",
    )
    listen_tls_cert_file: Path | None = Field(
        default=None, description="Certificate chain to show clients on tls:// addresses. Reloaded on SIGHUP."
    )
    listen_tls_key_file: Path | None = Field(default=None, description="Private key of listen_tls_cert_file.")
    listen_tls_ca_file: Path | None = Field(
        default=None,
        description="Certificate authorities that client certificates on tls:// addresses are checked against. If "
        "unset, clients need no certificate.",
    )
    listen_tls_timeout: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="Timeout for a client's TLS handshake, and for a PROXY protocol header before it.",
        json_schema_extra=_SECONDS,
    )
    listen_proxy_protocol: Annotated[list[str], NoDecode] = Field(
        default=[],
        max_length=64,
        description="Networks of load balancers, such as 10.0.0.0/8, that begin each connection with a PROXY protocol "
        "header (version 1 or 2): the log then shows the client that the header names. Clients from elsewhere are "
        "refused; Unix sockets need no header. Separate by commas, or repeat.",
    )
    max_clients: int = Field(
        default=10_000,
        ge=0,
        description="Maximum number of clients; more get Redis's own error. Each client takes two open files, so the "
        "open-file limit (ulimit -n) may lower this; 0 for as many as that limit allows.",
        json_schema_extra={"unit": "clients"},
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Number of processes that serve clients, at the same addresses. Each uses one core at most. "
        "max_clients and held_limit are for all of them together.",
        json_schema_extra={"unit": "processes"},
    )
    idle_timeout: float = Field(
        default=0.0,
        ge=0,
        description="Close a TCP client after this time without traffic; 0 for never. This also closes clients that "
        "wait in BLPOP or SUBSCRIBE. Prefer the server's own timeout setting, which spares them and works through the "
        "proxy.",
        json_schema_extra=_SECONDS,
    )
    tcp_keepalive: int = Field(
        default=60,
        ge=0,
        le=32_767,
        description="Send TCP keepalive probes to clients and the upstream after this idle time; a dead peer is "
        "detected within twice this time. 0 for never.",
        json_schema_extra=_SECONDS,
    )
    tcp_user_timeout: float = Field(
        default=60.0,
        ge=0,
        le=86_400,
        description="Close an upstream connection if sent data stays unacknowledged or unread for this time; 0 for the "
        "system's default, about 15 minutes.",
        json_schema_extra=_SECONDS,
    )
    takeover: Path | None = Field(
        default=None,
        description="Path of a Unix socket for restarts without refused clients. A proxy started with the path of a "
        "running one gets its listening sockets, and takes over as soon as it can serve clients.",
    )
    admin: str | None = Field(
        default=None,
        description="Address for probes, metrics and the status page over HTTP (/, /livez, /readyz, /metrics, "
        "POST /drain): host:port or unix:///path. Off unless set.",
    )
    admin_page: bool = Field(
        default=True,
        description="Show the status page at / of the admin port, with its figures at /status.json.",
    )
    admin_names: bool = Field(
        default=False,
        description="Show names on the status page: covered prefixes, the keys with the most deadlines, patterns and "
        "streams of rules. Anybody who reaches the admin port can read them.",
    )
    upstream: str = Field(
        default="redis://127.0.0.1:6379",
        repr=False,
        description="The Redis or Valkey to stand in front of: redis://, rediss:// (TLS) or unix://. Or the Sentinels "
        "that know it: redis+sentinel://host1,host2,host3/mymaster, or rediss+sentinel:// (TLS to all). "
        "User, password and database in the URL are for the proxy itself, at the Redis or Valkey; clients log in with "
        "their own.",
    )
    upstream_password: SecretStr | None = Field(
        default=None,
        description="The proxy's own password. Other users of the machine can see flags: use the environment variable "
        "or upstream_password_file.",
    )
    upstream_password_file: Path | None = Field(
        default=None,
        description="File with the proxy's own password. Read at each login, so a new password needs no restart.",
    )
    sentinel_user: str | None = Field(
        default=None, description="User for logging in to the Sentinels, if they have users."
    )
    sentinel_password: SecretStr | None = Field(
        default=None,
        description="Password for the Sentinels, if they require one. Other users of the machine can see flags: use "
        "the environment variable or sentinel_password_file.",
    )
    sentinel_password_file: Path | None = Field(
        default=None,
        description="File with the password for the Sentinels. Read at each login, so a new password needs no restart.",
    )
    embedded: bool = Field(
        default=False,
        description="Start a server of the proxy's own instead of using an upstream: the Valkey of the pip extra "
        "'embedded', else a Redis or Valkey on the PATH.",
    )
    embedded_dir: Path | None = Field(
        default=None,
        description="Folder for the embedded server's data. If unset, data is lost on exit. If no installed server "
        "can read the data, the proxy exits and does not touch it.",
    )
    prefix: str = Field(
        default="__expiremember__:",
        min_length=1,
        max_length=64,
        pattern=r"^[^{}\s]+$",
        description="Prefix of the proxy's own keys. Must be the same for all proxies of one server. If it is changed, "
        "deadlines under the old prefix are ignored.",
    )
    tls_ca_file: Path | None = Field(
        default=None,
        description="Certificate authorities for a rediss:// upstream, instead of the system's.",
    )
    tls_cert_file: Path | None = Field(default=None, description="Client certificate to show to a rediss:// upstream.")
    tls_key_file: Path | None = Field(default=None, description="Private key of tls_cert_file.")
    tls_verify: bool = Field(
        default=True, description="Check the certificate and the host name of a rediss:// upstream."
    )
    connect_timeout: float = Field(
        default=5.0, gt=0, le=300, description="Timeout for connecting to the upstream.", json_schema_extra=_SECONDS
    )
    control_timeout: float = Field(
        default=5.0,
        gt=0,
        le=300,
        description="Timeout for the upstream's answers to the proxy's own requests.",
        json_schema_extra=_SECONDS,
    )
    shutdown_timeout: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="Time for running requests to finish after SIGTERM or SIGINT. A second signal ends the proxy at "
        "once.",
        json_schema_extra=_SECONDS,
    )
    request_limit: int = Field(
        default=1 << 28,
        ge=1 << 16,
        description="Maximum size of a request that the proxy must buffer. A request larger than held_limit is refused "
        "too, so raise both.",
        json_schema_extra=_BYTES,
    )
    held_limit: int = Field(
        default=1 << 28,
        ge=1 << 16,
        description="Maximum size of all buffered requests of all clients together.",
        json_schema_extra=_BYTES,
    )
    share: bool = Field(
        default=True,
        description="Send small requests of many clients over a few shared upstream connections, which makes "
        "unpipelined traffic cheaper. Only clients logged in as the proxy's own upstream user share, and only with "
        "Redis 7.0 or newer, or Valkey.",
    )
    share_after: int = Field(
        default=8,
        ge=1,
        description="Number of small requests in a row from a client before the server is asked whether it may share.",
        json_schema_extra={"unit": "requests"},
    )
    sweep: bool = Field(
        default=True, description="Remove members when they are due. If off, members are removed on access."
    )
    sweep_batch: int = Field(
        default=500,
        ge=1,
        le=5000,
        description="Maximum number of members removed in one batch; the server is blocked for the duration of a "
        "batch.",
        json_schema_extra={"unit": "members"},
    )
    reserved_names: bool = Field(
        default=True,
        description="Refuse client requests that name the proxy's own keys. Turn off for maintenance only.",
    )
    cover: Annotated[list[str], NoDecode] = Field(
        default=[],
        max_length=32,
        description="Prefix of the names of keys whose members get deadlines, such as cart:. By default "
        "prefixes are found as they are used. A prefix given here is announced at the start, so that its first "
        "deadline need not wait for other proxies. Repeatable.",
    )
    leftovers_rate: int = Field(
        default=1000,
        ge=0,
        description="Rate at which the background pass looks for deadlines of removed members; 0 turns all background "
        "passes off, including the repair of the index.",
        json_schema_extra={"unit": "deadlines/second"},
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Minimum level of messages to log."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        default="auto",
        description="Format of the log on standard error: console for people, json for machines; auto: for people if "
        "that is a terminal, else for machines.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources by precedence: flags, then environment, then file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @field_validator("listen", "listen_proxy_protocol", "cover", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return split_addresses(value) if isinstance(value, str) else value

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, addresses: list[str]) -> list[str]:
        for address in addresses:
            parse_address(address)
        return addresses

    @field_validator("listen_proxy_protocol")
    @classmethod
    def _check_networks(cls, given: list[str]) -> list[str]:
        found = [text for part in given for text in split_addresses(part)]
        for text in found:
            try:
                ip_network(text)
            except ValueError as error:
                raise ValueError(f"{text!r} is not a network such as 10.0.0.0/8 or fd00::/8: {error}") from None
        return found

    @field_validator("cover")
    @classmethod
    def _check_cover(cls, prefixes: list[str]) -> list[str]:
        for prefix in prefixes:
            if not 1 <= len(prefix.encode()) <= LONGEST:
                raise ValueError(f"{prefix!r}: a prefix has 1 to {LONGEST} bytes")
        return prefixes

    @field_validator("admin")
    @classmethod
    def _check_admin(cls, address: str | None) -> str | None:
        where = None if address is None else parse_address(address, offer_tls=False)
        if isinstance(where, TCPAddress) and where.tls:
            raise ValueError(f"{address!r}: the admin port does not support TLS; listen on 127.0.0.1 or unix:///path")
        return address

    @field_validator("upstream")
    @classmethod
    def _check_upstream(cls, url: str) -> str:
        parse_upstream(url)
        return url

    @field_validator("idle_timeout")
    @classmethod
    def _check_idle_timeout(cls, seconds: float) -> float:
        if seconds and not sys.platform.startswith("linux"):
            raise ValueError("works only on Linux: other systems do not report when a connection was last used")
        return seconds

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.embedded_dir is not None and not self.embedded:
            raise ValueError("embedded_dir needs embedded")
        if self.embedded and self.upstream != type(self).model_fields["upstream"].default:
            raise ValueError("use either embedded or upstream, not both")
        if self.embedded and self.takeover is not None:
            raise ValueError("use either embedded or takeover, not both: an embedded server ends with its proxy")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("set both tls_cert_file and tls_key_file")
        self._check_listen_tls()
        self._check_passwords()
        return self

    def _check_listen_tls(self) -> None:
        if (self.listen_tls_cert_file is None) != (self.listen_tls_key_file is None):
            raise ValueError("set both listen_tls_cert_file and listen_tls_key_file")
        addresses = [parse_address(address) for address in self.listen]
        if any(isinstance(address, TCPAddress) and address.tls for address in addresses):
            if self.listen_tls_cert_file is None:
                raise ValueError("a tls:// address needs listen_tls_cert_file and listen_tls_key_file")
        elif self.listen_tls_cert_file or self.listen_tls_ca_file:
            raise ValueError("listen_tls_cert_file and listen_tls_ca_file need a tls:// address in listen")
        if self.listen_proxy_protocol and not any(isinstance(address, TCPAddress) for address in addresses):
            raise ValueError("listen_proxy_protocol needs a host:port or tls:// address in listen")

    def has_password(self, name: str) -> bool:
        """Return whether a setting contains a password or names a password file."""
        value = getattr(self, name)
        return value is not None if name != "upstream" else parse_upstream(value).password is not None

    def _check_passwords(self) -> None:
        given = [
            name for name in ("upstream", "upstream_password", "upstream_password_file") if self.has_password(name)
        ]
        if len(given) > 1:
            raise ValueError(f"the password is given more than once: {', '.join(given)}")
        if given and self.embedded:
            raise ValueError(f"use either embedded or {given[0]}, not both")
        of_sentinels = [name for name in SENTINEL_SETTINGS if getattr(self, name) is not None]
        if of_sentinels and (self.embedded or not parse_upstream(self.upstream).sentinels):
            raise ValueError(f"{of_sentinels[0]} needs a redis+sentinel:// upstream")
        if self.sentinel_password is not None and self.sentinel_password_file is not None:
            raise ValueError("the password for the Sentinels is given more than once")


def unit(field: FieldInfo) -> str | None:
    """Return the unit of a numeric setting, such as `seconds`; None for others."""
    extra = field.json_schema_extra
    return str(extra["unit"]) if isinstance(extra, dict) and "unit" in extra else None


def reasons(error: ValidationError) -> list[str]:
    """Return why the settings are invalid: one text for each error."""
    units = {name: unit(field) for name, field in Settings.model_fields.items()}
    return [describe(dict(detail), units, _HIDDEN) for detail in error.errors()]


def load(flags: dict[str, Any], file: Path | None) -> Settings:
    """Load the settings from all sources.

    Args:
        flags: the settings given on the command line.
        file: the configuration file (TOML), if any.

    Raises:
        SettingsError: a source cannot be read, or a setting is invalid.
    """

    class _Settings(Settings):
        model_config = SettingsConfigDict(toml_file=file)

    if file is not None and (reason := _why_no_file(file)) is not None:
        raise SettingsError(f"configuration file {file}: {reason}")
    try:
        return _Settings(**flags)
    except ValidationError as error:
        told = reasons(error)
        if file is not None and any(detail["type"] == "extra_forbidden" for detail in error.errors()):
            told.append(f"see configuration file {file}")
        raise SettingsError("; ".join(told)) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"configuration file {file}: {error}") from None
    except RecursionError:
        raise SettingsError(f"configuration file {file}: nested too deeply") from None
    except (OSError, ValueError) as error:  # such as UnicodeDecodeError, or a number with thousands of digits
        raise SettingsError(f"configuration file {file}: {error}") from None


def _why_no_file(path: Path) -> str | None:
    """Return why there is no regular file at a path; None if there is one."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return (error.strerror or str(error)).lower()
    if stat.S_ISDIR(mode):
        return "it is a directory"
    return None if stat.S_ISREG(mode) else "it is not a regular file"


def misspelt(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that look like misspelt settings, each with the variable that was probably meant.

    Other variables that begin with EXPIREMEMBER_ are ignored: Kubernetes sets some for services with such names.
    """
    known = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in (*Settings.model_fields, "config")}
    strange = (
        name for name in environment if name.upper().startswith(ENVIRONMENT_PREFIX) and name.upper() not in known
    )
    found = {
        name: nearest(name.upper().removeprefix(ENVIRONMENT_PREFIX).lower(), Settings.model_fields) for name in strange
    }
    return {name: f"{ENVIRONMENT_PREFIX}{meant.upper()}" for name, meant in sorted(found.items()) if meant}
