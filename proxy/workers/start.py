"""Start a worker of the proxy: a script for an interpreter of its own, which the supervisor runs.

Its tests: tests/test_workers.py.
"""

import signal
import sys
from pathlib import Path


def main() -> int:
    """Run the worker that standard input, a socket, tells about.

    Returns:
        The exit status.
    """
    # Until they can be passed on: a service manager, or a terminal, may signal all processes of the proxy.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    package = str(Path(__file__).parents[2])
    if package not in sys.path:
        sys.path.insert(0, package)  # where the supervisor has found it
    from proxy.loading import loading

    with loading():
        from proxy.workers.worker import run
    return run()


if __name__ == "__main__":
    sys.exit(main())
