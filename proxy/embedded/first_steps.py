"""First commands to try, for people who have just started a proxy with an embedded server.

Its tests: tests/test_embedded.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy import logs
from proxy.addresses import TCPAddress, parse_address
from proxy.settings import Settings


def show_first_steps(settings: Settings, listen: Sequence[str]) -> None:
    """Print the first steps below the log if the log is meant for people.

    Args:
        settings: the proxy's settings.
        listen: the addresses at which the proxy accepts clients, as the log shows them.
    """
    if settings.embedded and logs.style_of(settings.log_format) == "console":
        logs.print_below(first_steps(listen[0], settings.admin if settings.admin_page else None))


def first_steps(listen: str, admin: str | None) -> str:
    """Return the lines to print.

    Args:
        listen: an address of the proxy: host:port or unix:///path, with tls:// in front if it uses TLS.
        admin: the address of the status page; None if there is none.
    """
    where = parse_address(listen.removeprefix("tls://"), offer_tls=False)
    if isinstance(where, TCPAddress):
        host = "" if where.host in ("127.0.0.1", "0.0.0.0", "::") else f" -h {where.host}"  # noqa: S104
        reach = f"{host} -p {where.port}"
    else:
        reach = f" -s {where}"
    tls = " --tls --insecure" if listen.startswith("tls://") else ""
    lines = [
        f"Try it with redis-cli{reach}{tls}:",
        "    SADD guests ann bob",
        "    EXPIREMEMBER guests ann 60",
        "    TTL guests ann",
    ]
    if admin is not None and not admin.startswith("unix://") and not admin.endswith(":0"):
        lines.append(f"Watch it at http://{admin}/")
    return "\n".join(("", *lines, "", ""))
