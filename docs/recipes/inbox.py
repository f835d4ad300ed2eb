"""An inbox of messages that lapse, each after its own time; those that nobody has read are counted.

It replaces a sorted set by due time beside the messages, and a job that trims the one and forgets the other.

    expiremember-proxy events set 'inbox:*' --stream unread --maxlen 100000
    python inbox.py redis://127.0.0.1:6380

What can go wrong: about 100,000 entries are kept, read or not; if `missed` does not run for that long, it misses some.
A message that is sent twice with the same text is one member: put a number in front where that matters.
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
    """Return how many messages wait."""
    return r.zcard(f"inbox:{user}")


def read(r: redis.Redis, user: str) -> list[str]:
    """Take all messages out, the oldest first; they lapse no more."""
    with r.pipeline() as p:
        p.zrange(f"inbox:{user}", 0, -1)
        p.delete(f"inbox:{user}")
        return p.execute()[0]


def missed(r: redis.Redis, last: str = "0") -> tuple[dict[str, int], str]:
    """Return how many messages lapsed for each user since an entry, and which the last entry is: keep it."""
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
