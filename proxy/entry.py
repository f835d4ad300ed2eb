"""Start the command line. A probe runs every few seconds, so it starts directly and loads nothing that only the server
needs.

Its tests: tests/test_lifecycle.py.
"""

from __future__ import annotations

import sys

from proxy.held_signals import hold


def main() -> None:
    """Run what the arguments ask for."""
    if "--probe" not in sys.argv:
        hold()  # first of all: the rest takes time
    from proxy.check import probe
    from proxy.loading import loading

    status = probe.main()
    if status is not None:
        sys.exit(status)
    with loading():
        from proxy.cli import main
    main()
