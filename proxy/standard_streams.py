"""Prepare standard input, output and error: a write error is reported in one line, and encoding never fails.

Its tests: tests/test_standard_streams.py.

- A closed stream is replaced, so that no file or connection gets its descriptor. Writes to standard output still fail;
  writes to standard error are dropped.
- A failed write to standard output raises `OutputError`. An OSError would be taken for a server's failure. The process
  then ends with a message and status 2. If the reader of a pipe has gone, the process ends silently, by SIGPIPE, as
  most programs do.
- Messages that cannot be written to standard error are lost.
- Characters that the encoding lacks are written as escapes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

UNWRITABLE: Final = 2
"""The exit status if standard output cannot be written."""

# Input and output become /dev/null, opened in the wrong direction: like a closed stream it fails with EBADF.
_REPLACED: Final = ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY))


class OutputError(Exception):
    """Standard output cannot be written. The process is about to end."""


class _Output(io.FileIO):
    """Standard output.

    Attributes:
        error: the first error in writing; all later writes are dropped.
    """

    error: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """Write some of the data; return how much.

        Raises:
            OutputError: standard output cannot be written.
        """
        if self.error is not None:
            return len(memoryview(data))
        try:
            if (written := super().write(data)) is None:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        except OSError as error:
            self.error = error
            raise OutputError from error
        return written


class _Messages(io.FileIO):
    """Standard error: drops data that cannot be written."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write some of the data, or drop all; return how many bytes were written or dropped."""
        with contextlib.suppress(OSError):
            if (written := super().write(data)) is not None:
                return written
        return len(memoryview(data))


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Replace the streams; at the end, exit if standard output could not be written."""
    for descriptor, flags in _REPLACED:
        try:
            os.fstat(descriptor)
        except OSError:
            # `os.open` takes the lowest free descriptor, which is `descriptor`.
            os.set_inheritable(os.open(os.devnull, flags), True)
    output = _Output(1, "w", closefd=False)
    sys.stdout = _text(output, sys.stdout)
    sys.stderr = _text(_Messages(2, "w", closefd=False), sys.stderr)
    try:
        yield
    finally:
        with contextlib.suppress(OutputError):
            sys.stdout.flush()
        if output.error is not None:
            _end(output.error)


def _text(raw: io.FileIO, before: TextIO | None) -> TextIO:
    by_line = raw.fileno() == 2 or raw.isatty() or (isinstance(before, io.TextIOWrapper) and before.write_through)
    encoding = None if before is None else before.encoding
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=by_line)


def _end(error: OSError) -> NoReturn:
    if isinstance(error, BrokenPipeError):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)  # without effect in the first process of a container
        sys.exit(128 + signal.SIGPIPE)
    reason = "it is closed" if error.errno == errno.EBADF else (error.strerror or str(error)).lower()
    print(f"expiremember-proxy: cannot write to standard output: {reason}", file=sys.stderr)
    sys.exit(UNWRITABLE)
