"""Do the work of read-only scripts with plain commands, because Redis before 7.0 treats every script as a write.

Its tests: tests/test_refusals.py.

Each function returns the requests to send, and a function that turns the replies into the reply of the script of the
same name. The clock is read first, so the time in the reply is never later than the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

from redis.exceptions import ResponseError

Words: TypeAlias = bytes | int | str
Ask: TypeAlias = Iterable[tuple[Words, ...]]
Plain: TypeAlias = Callable[[list[bytes], list[Words]], tuple[Ask, Callable[[list[Any]], Any]]]


def _of(databases: list[Words], *asks: tuple[Words, ...]) -> Iterator[tuple[Words, ...]]:
    for database in databases:
        yield "SELECT", database
        yield from asks


def _each(replies: list[Any], size: int) -> Iterator[tuple[int, list[Any]]]:
    """Yield, for each existing database, its position and its replies.

    Raises:
        ResponseError: a request failed for a reason other than a key of the wrong type.
    """
    for place in range(len(replies) // (size + 1)):
        selected, *answers = replies[place * (size + 1) : (place + 1) * (size + 1)]
        if isinstance(selected, ResponseError):
            continue
        for answer in answers:
            if isinstance(answer, ResponseError) and not str(answer).startswith("WRONGTYPE"):
                raise answer
        yield place, answers


def _moment(time: Any) -> int:
    if isinstance(time, ResponseError):
        raise time
    return 1_000_000 * int(time[0]) + int(time[1])


def _due(keys: list[bytes], arguments: list[Words]) -> tuple[Ask, Callable[[list[Any]], Any]]:
    room, *databases = arguments

    def take(replies: list[Any]) -> Any:
        moment, left, found, spoilt = _moment(replies[0]), int(room), [], []
        for place, [first] in _each(replies[1:], 1):
            if isinstance(first, ResponseError):
                spoilt.append(databases[place])
                first = []
            pairs = list(zip(first[::2], first[1::2], strict=True))
            due = [word for key, score in pairs if float(score) <= moment / 1000 for word in (key, score)][: 2 * left]
            left -= len(due) // 2
            found.append([databases[place], pairs[0][1] if pairs else b"", due])
        return [moment, found, spoilt]

    return [("TIME",), *_of(databases, ("ZRANGE", keys[0], 0, int(room) - 1, "WITHSCORES"))], take


def _deadlines(keys: list[bytes], arguments: list[Words]) -> tuple[Ask, Callable[[list[Any]], Any]]:
    count = int(arguments[0])
    databases, names = arguments[1 : 1 + count], arguments[1 + count :]

    def take(replies: list[Any]) -> Any:
        found: list[Any] = [b""] * len(names)
        for _, [scores] in _each(replies[1:], 1):
            for place, score in enumerate([] if isinstance(scores, ResponseError) else scores):
                if score is not None and (not found[place] or float(score) < float(found[place])):
                    found[place] = score
        return [_moment(replies[0]), found]

    return [("TIME",), *_of(databases, ("ZMSCORE", keys[0], *names))], take


def _page(keys: list[bytes], arguments: list[Words]) -> tuple[Ask, Callable[[list[Any]], Any]]:
    database, begin, offset, count = arguments

    def take(replies: list[Any]) -> Any:
        return next((page for _, [page] in _each(replies, 1) if not isinstance(page, ResponseError)), [])

    ask = "ZRANGEBYSCORE", keys[0], begin, "+inf", "WITHSCORES", "LIMIT", offset, count
    return _of([database], ask), take


def _traces(keys: list[bytes], databases: list[Words]) -> tuple[Ask, Callable[[list[Any]], Any]]:
    return _of(databases, ("EXISTS", *keys)), lambda replies: sum(count for _, [count] in _each(replies, 1))


def _own_names(keys: list[bytes], arguments: list[Words]) -> tuple[Ask, Callable[[list[Any]], Any]]:
    database, names, entries, pattern, step = arguments
    asks: list[tuple[Words, ...]] = []
    if names:
        asks.append(("SCAN", names, "MATCH", pattern, "COUNT", step))
    if entries:
        asks.append(("ZSCAN", keys[0], entries, "COUNT", step))

    def take(replies: list[Any]) -> Any:
        [answers] = [found for _, found in _each(replies, len(asks))] or [[]]
        pages = [[b"", []] if isinstance(page, ResponseError) else page for page in answers]
        cursors = [b"" if cursor == b"0" else cursor for cursor, _ in pages]
        found = [cursors.pop(0), pages.pop(0)[1]] if names and pages else [b"", []]
        other = [cursors[0], pages[0][1][::2]] if pages else [b"", []]
        return [found[0], other[0], found[1], other[1]]

    return _of([database], *asks), take


PLAINLY: Final[dict[str, Plain]] = {
    "due": _due,
    "deadlines": _deadlines,
    "page": _page,
    "traces": _traces,
    "own_names": _own_names,
}
"""Name of the script → function."""
