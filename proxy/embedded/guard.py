"""Run a server as a child that is ended when standard input closes, so that it cannot outlive the proxy.

Its tests: tests/test_embedded.py.

This is a script for a separate interpreter: ``python -I -S guard.py GRACE FOLDER COMMAND...``. Do not import it.
Standard input is a pipe, and only the proxy holds its other end. The kernel closes that end however the proxy dies,
even by ``kill -9``. Then the guard ends the command (SIGTERM, after GRACE seconds SIGKILL) and removes FOLDER.

On Linux the kernel also sends the command SIGTERM if the guard itself is killed (PR_SET_PDEATHSIG). That alone would
not be enough: it is one signal, once. A server inside an endless script does not handle SIGTERM, and SIGKILL loses
writes not yet in the append-only file. Neither signal removes the folder, and other systems lack PR_SET_PDEATHSIG.
"""

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1
"""See prctl(2)."""


def end_with_parent(parent: int) -> None:
    """Have the kernel send this process SIGTERM when its parent, the guard, has ended, where it can."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before it could cause a signal
        os._exit(1)


def end_with_standard_input(child: "subprocess.Popen[bytes]", grace: float) -> None:
    """Wait until standard input closes, then terminate the child.

    Args:
        child: the running command.
        grace: seconds between SIGTERM and SIGKILL.
    """
    while os.read(0, 64):
        pass
    child.terminate()
    try:
        child.wait(grace)
    except subprocess.TimeoutExpired:
        child.kill()


def main() -> int:
    """Run the command on the command line until it exits.

    Returns:
        The command's exit status; 128 plus the signal's number if a signal ended it, as in a shell.
    """
    grace, folder, *command = sys.argv[1:]
    # A service manager may signal every process of the service, but the guard must outlive its child. Use an empty
    # handler: the child would inherit SIG_IGN.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        # Inheritable descriptors stay open, so the child holds the lock on the data folder as long as it lives.
        child = subprocess.Popen(  # noqa: S603 - the proxy's own command
            command,
            stdin=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=functools.partial(end_with_parent, os.getpid()),
        )
        threading.Thread(target=end_with_standard_input, args=(child, float(grace)), daemon=True).start()
        status = child.wait()
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        return 127
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    # Not sys.exit: at shutdown the interpreter needs standard input's lock, which the reading thread may hold.
    os._exit(main())
