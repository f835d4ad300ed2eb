"""Start a worker: a script that the supervisor runs in a new interpreter.

Its tests: tests/test_workers.py.
"""

import signal
import sys
from pathlib import Path


def main() -> int:
    """Run the worker whose assignment arrives on standard input, a socket.

    Returns:
        The exit status.
    """
    # Block signals until there are handlers: a service manager or a terminal may signal all processes of the proxy.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    package = str(Path(__file__).parents[2])
    if package not in sys.path:
        sys.path.insert(0, package)  # import the same package as the supervisor
    from proxy.loading import loading

    with loading():
        from proxy.workers.worker import run
    return run()


if __name__ == "__main__":
    sys.exit(main())
