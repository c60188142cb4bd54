"""Draw items in a thread of its own, a bounded number ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

_PUT_TIMEOUT_S = 0.1


class ReadAhead(Generic[T]):
    """An iterator over ``items`` whose next ones are made while the current one is used.

    Use it in a ``with`` block: at its end the thread has stopped. An exception of ``items`` is raised where it would be
    without the thread.

    Args:
        items: drawn in the thread only.
        limit: how many wait to be taken at most; one more is being made.

    """

    def __init__(self, items: Iterator[T], limit: int) -> None:
        self._items = items
        self._ready: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(limit)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="facegraph-read-ahead", daemon=True)

    def __enter__(self) -> ReadAhead[T]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def __iter__(self) -> ReadAhead[T]:
        return self

    def __next__(self) -> T:
        entry = self._ready.get()
        if entry is None:
            raise StopIteration
        if isinstance(entry, BaseException):
            raise entry
        return entry[0]

    def _run(self) -> None:
        try:
            for item in self._items:
                self._put((item,))
                if self._stop.is_set():
                    return
                del item  # it may be large, and the next one takes long
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, entry: tuple[T] | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._ready.put(entry, timeout=_PUT_TIMEOUT_S)
            except queue.Full:
                continue
            return
