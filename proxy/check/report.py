"""Run the check and print its table.

Its tests: tests/test_check.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from proxy.check.asking import check_upstream
from proxy.check.findings import Finding, Level, exposure
from proxy.check.listening import check_admin, check_listening, check_takeover, exposed
from proxy.check.probe import printable
from proxy.embedded.binaries import EmbeddedError, find_servers
from proxy.loop import PlainLoop
from proxy.settings import Settings


def table(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield a line for each finding: level, subject and text."""
    rows = list(findings)
    width = max((len(row.subject) for row in rows), default=0)
    for row in rows:
        yield printable(f"{row.level.value:<8} {row.subject:<{width}}  {row.text}")


def run(settings: Settings) -> int:
    """Run the check, and print the findings.

    Returns:
        The exit status: 1 if there is a failure, else 0.

    Raises:
        SettingsError: a certificate of the upstream, or the password file, cannot be used.
    """
    upstream = _embedded(settings) if settings.embedded else _ask(settings)
    findings = [*upstream, *check_listening(settings), *check_admin(settings), *check_takeover(settings)]
    for line in table(findings):
        print(line, flush=True)
    return 1 if any(finding.level is Level.FAILURE for finding in findings) else 0


def _ask(settings: Settings) -> list[Finding]:
    with asyncio.Runner(loop_factory=PlainLoop) as runner:
        return list(runner.run(check_upstream(settings)))


def _embedded(settings: Settings) -> list[Finding]:
    try:
        found = Finding(Level.OK, "embedded", f"server to start: {find_servers()[0]}")
        return [found, *exposure(exposed(settings), wants_login=False)]
    except EmbeddedError as error:
        return [Finding(Level.FAILURE, "embedded", str(error))]
