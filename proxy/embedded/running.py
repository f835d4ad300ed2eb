"""Find the embedded server of a running proxy: only the proxy knows its address.

Its tests: tests/test_embedded.py.
"""

from __future__ import annotations

from proxy.check.listening import section
from proxy.settings import Settings, SettingsError


def of_running(settings: Settings) -> Settings:
    """Return settings with the address of the running proxy's embedded server, or unchanged if `embedded` is off.

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
