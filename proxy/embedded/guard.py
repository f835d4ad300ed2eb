"""Run one command as a child that ends when the guard's standard input does: a server that cannot outlive the proxy.

Its tests: tests/test_embedded.py.

A script for an interpreter of its own, ``python -I -S guard.py GRACE FOLDER COMMAND...``, and nothing to import.
Standard input is a pipe whose only other end the proxy holds. The kernel closes that end however the proxy dies,
``kill -9`` included, and then the guard ends the command (SIGTERM, after GRACE seconds SIGKILL) and removes FOLDER.

Why not Linux's PR_SET_PDEATHSIG: it sends one signal, once. SIGTERM may be left waiting by a server inside an endless
script, SIGKILL loses what the append-only file has not got yet; neither removes the folder, and other systems lack it.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading


def end_with_standard_input(child: "subprocess.Popen[bytes]", grace: float) -> None:
    """Wait until standard input closes, then end the child.

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
    """Run the command line's command to its end.

    Returns:
        The command's exit status; 128 and the signal's number where a signal ended it, as in a shell.
    """
    grace, folder, *command = sys.argv[1:]
    # The guard ends when its child has, and only then: a service manager that signals every process of the service
    # must not take the guard first. Not SIG_IGN, which the child would inherit.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        # What is inheritable stays open: the lock on the data folder, which is then held as long as the child lives.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=False)  # noqa: S603 - the proxy's own
        threading.Thread(target=end_with_standard_input, args=(child, float(grace)), daemon=True).start()
        status = child.wait()
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        return 127
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    # Not sys.exit: the thread may still stand in a read of standard input, whose lock the interpreter's end wants.
    os._exit(main())
