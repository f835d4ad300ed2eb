"""Entry point of the command line. Probes start here directly, because they run every few seconds and need none of the
server's modules.

Its tests: tests/test_lifecycle.py.
"""

from __future__ import annotations

import sys

from proxy.held_signals import hold
from proxy.standard_streams import prepared


def main() -> None:
    """Run the command line, or only a probe."""
    if "--probe" not in sys.argv:
        hold()  # hold signals back before the imports below, which take time
    with prepared():
        _run()


def _run() -> None:
    from proxy.check import probe
    from proxy.loading import loading

    status = probe.main()
    if status is not None:
        sys.exit(status)
    with loading():
        from proxy.cli import main
    main()
