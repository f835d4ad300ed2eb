"""Something that goes on in a thread of its own while a block of a test runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Beside(ABC):
    """Begins when it is entered, and is waited for when it is left.

    Attributes:
        end: set when it is to come to an end.
    """

    def __init__(self) -> None:
        self.end = threading.Event()
        self._thread = threading.Thread(target=self.work, daemon=True)

    @abstractmethod
    def work(self) -> None:
        """Go on until the end."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end.set()
        self._thread.join()
