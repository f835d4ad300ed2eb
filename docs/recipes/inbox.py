"""An inbox of messages that each expire at their own time; messages that expire unread are counted.

It replaces a sorted set of due times beside the messages, and a job that has to keep the two consistent.

    expiremember-proxy events set 'inbox:*' --stream unread --maxlen 100000
    python inbox.py redis://127.0.0.1:6380

What can go wrong: the stream keeps about 100,000 entries, read or not. If more messages expire before `missed` runs
again, it misses some. Two messages with the same text are one member: if that matters, put a number before the text.
"""

import sys
import time

import redis


def send(r: redis.Redis, user: str, message: str, seconds: float) -> None:
    """Put a message into an inbox, for some seconds."""
    with r.pipeline() as p:
        p.zadd(f"inbox:{user}", {message: time.time()})
        p.execute_command("EXPIREMEMBER", f"inbox:{user}", message, max(1, int(seconds * 1000)), "ms")
        p.execute()


def unread(r: redis.Redis, user: str) -> int:
    """Return how many unread messages there are."""
    return r.zcard(f"inbox:{user}")


def read(r: redis.Redis, user: str) -> list[str]:
    """Take all messages out, the oldest first; they no longer expire."""
    with r.pipeline() as p:
        p.zrange(f"inbox:{user}", 0, -1)
        p.delete(f"inbox:{user}")
        return p.execute()[0]


def missed(r: redis.Redis, last: str = "0") -> tuple[dict[str, int], str]:
    """Return how many messages of each user have expired since entry `last`, and the new last entry: keep it."""
    counts: dict[str, int] = {}
    while found := r.xread({"unread": last}, count=1000):
        for _, entry in found[0][1]:
            user = entry["key"].removeprefix("inbox:")
            counts[user] = counts.get(user, 0) + 1
        last = found[0][1][-1][0]
    return counts, last


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python inbox.py redis://HOST:PORT")
    print(missed(redis.Redis.from_url(sys.argv[1], decode_responses=True)))
