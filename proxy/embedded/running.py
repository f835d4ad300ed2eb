"""Finds the embedded server of a proxy that runs: only the proxy knows where it is.

Its tests: tests/test_embedded.py.
"""

from __future__ import annotations

from proxy.check.listening import section
from proxy.settings import Settings, SettingsError


def of_running(settings: Settings) -> Settings:
    """Return settings that name the embedded server of the proxy that runs with these; others as they are.

    Raises:
        SettingsError: no such proxy answers.
    """
    if not settings.embedded:
        return settings
    for address in settings.listen:
        if (url := section(address).get("upstream")) is not None:
            return settings.model_copy(update={"embedded": False, "upstream": url})
    raise SettingsError(
        f"embedded: no proxy answers at {', '.join(settings.listen)}; start it first, or set listen to where it runs"
    )
