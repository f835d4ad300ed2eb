"""Every setting, with its default, its bounds and its one line of description: the only source of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

ENVIRONMENT_PREFIX = "EXPIREMEMBER_"

_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/]+):([0-9]{1,5})")


class SettingsError(Exception):
    """A setting that cannot be used; the text is one line that says which and why."""


class Settings(BaseSettings):
    """The settings: command-line flags over environment variables over the configuration file over the defaults."""

    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True)

    listen: Annotated[list[str], NoDecode] = Field(
        default=["127.0.0.1:6380"],
        min_length=1,
        description="Address to accept clients on: host:port or unix:///path. May be repeated.",
    )
    upstream: str = Field(
        default="redis://127.0.0.1:6379",
        description="The Redis or Valkey to stand in front of: redis://, rediss:// (TLS) or unix://. User, password "
        "and database in it are for the proxy itself; clients log in with theirs.",
    )
    embedded: bool = Field(
        default=False, description="Start a Redis of its own and stand in front of it, instead of an upstream."
    )
    embedded_dir: Path | None = Field(
        default=None, description="Folder where the embedded Redis keeps its data. Without it, data goes at the end."
    )
    prefix: str = Field(
        default="__expiremember__:",
        min_length=1,
        max_length=64,
        pattern=r"^[^{}\s]+$",
        description="What the names of the proxy's own keys begin with. The same for all proxies of one Redis.",
    )
    tls_ca_file: Path | None = Field(
        default=None, description="Certificates that a rediss:// upstream is checked against, instead of the system's."
    )
    tls_cert_file: Path | None = Field(
        default=None, description="Certificate that the proxy shows to a rediss:// upstream."
    )
    tls_key_file: Path | None = Field(default=None, description="Private key of tls_cert_file.")
    tls_verify: bool = Field(default=True, description="Check the certificate and the name of a rediss:// upstream.")
    connect_timeout: float = Field(
        default=5.0, gt=0, le=300, description="Seconds that a connection to the upstream may take to open."
    )
    control_timeout: float = Field(
        default=5.0, gt=0, le=300, description="Seconds that the upstream may take to answer the proxy's own requests."
    )
    shutdown_timeout: float = Field(
        default=10.0, ge=0, le=3600, description="Seconds that running requests get to finish after SIGTERM or SIGINT."
    )
    request_limit: int = Field(
        default=1 << 30,
        ge=1 << 16,
        description="Maximum size, in bytes, of a request that the proxy must buffer before it can judge it.",
    )
    held_limit: int = Field(
        default=1 << 28,
        ge=1 << 16,
        description="Maximum size, in bytes, of all requests together that the proxy has to buffer.",
    )
    sweep: bool = Field(
        default=True, description="Remove members when they are due. Off, they are removed when somebody looks."
    )
    sweep_batch: int = Field(
        default=500, ge=1, le=5000, description="Members that one sweep removes at most: Redis serves nobody meanwhile."
    )
    reserved_names: bool = Field(
        default=True, description="Refuse clients' requests that name the proxy's own keys. Off only for maintenance."
    )
    leftovers_rate: int = Field(
        default=1000,
        ge=0,
        description="Deadlines a second to check, in the background, for members that went unnoticed; 0 for none.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe messages to log."
    )
    log_format: Literal["console", "json"] = Field(default="console", description="How to log, to standard error.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @field_validator("listen", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, addresses: list[str]) -> list[str]:
        for address in addresses:
            parse_address(address)
        return addresses

    @field_validator("upstream")
    @classmethod
    def _check_upstream(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        if parts.scheme == "unix":
            if not parts.path:
                raise ValueError("names no socket: unix:///path")
        else:
            if not parts.hostname:
                raise ValueError("names no host: redis://host:port")
            _ = parts.port  # raises ValueError where it is not a port
            if parts.path.strip("/") and not parts.path.strip("/").isdigit():
                raise ValueError("the database behind the / must be a number")
        return url

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.embedded_dir is not None and not self.embedded:
            raise ValueError("embedded_dir goes with embedded")
        if self.embedded and self.upstream != type(self).model_fields["upstream"].default:
            raise ValueError("embedded and upstream exclude each other")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        return self


def parse_address(address: str) -> Path | tuple[str, int]:
    """Read an address to listen on.

    Returns:
        The path of a Unix socket, or host and port.

    Raises:
        ValueError: it is neither `host:port` nor `unix:///path`.
    """
    if address.startswith("unix://"):
        path = address.removeprefix("unix://")
        if not path.startswith("/"):
            raise ValueError(f"{address!r}: the path of a Unix socket is absolute: unix:///path")
        return Path(path)
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or int(match[2]) > 65535:
        raise ValueError(f"{address!r} is neither host:port nor unix:///path")
    return match[1].strip("[]"), int(match[2])


def load(flags: dict[str, Any], file: Path | None) -> Settings:
    """Gather the settings from all sources.

    Args:
        flags: those given on the command line.
        file: the configuration file (TOML), if any.

    Raises:
        SettingsError: a source cannot be read, or a setting cannot be used.
    """

    class _Settings(Settings):
        model_config = SettingsConfigDict(toml_file=file)

    if file is not None and not file.is_file():
        raise SettingsError(f"configuration file {file}: no such file")
    try:
        return _Settings(**flags)
    except ValidationError as error:
        raise SettingsError("; ".join(_describe(dict(detail)) for detail in error.errors())) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"configuration file {file}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"configuration file {file}: {error}") from None


def _describe(detail: dict[str, Any]) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    text = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        return f"{name}: there is no such setting"
    return f"{name}: {text}" if name else text
