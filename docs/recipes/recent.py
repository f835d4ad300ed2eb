"""A list whose elements expire: the last ten products that a user has looked at, each kept for a week.

It replaces a list with times in its elements, which every reader has to filter and which grows.

    python recent.py redis://127.0.0.1:6380

What can go wrong: a deadline belongs to a value, with all its occurrences in the list. So `look` removes the product
first, which ends its old deadline too. Removing an element scans the list: keep lists short.
"""

import sys

import redis

MOST, SECONDS = 10, 7 * 86_400


def look(r: redis.Redis, user: str, product: str, seconds: float = SECONDS) -> None:
    """Put a product at the front of the list."""
    key = f"recent:{user}"
    with r.pipeline() as p:
        p.lrem(key, 0, product)
        p.lpush(key, product)
        p.execute_command("EXPIREMEMBER", key, product, int(seconds * 1000), "ms")
        p.ltrim(key, 0, MOST - 1)
        p.execute()


def recent(r: redis.Redis, user: str) -> list[str]:
    """Return the products, the most recent first."""
    return r.lrange(f"recent:{user}", 0, -1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python recent.py redis://HOST:PORT")
    connection = redis.Redis.from_url(sys.argv[1], decode_responses=True)
    for number in range(12):
        look(connection, "7", f"product {number}")
    print(recent(connection, "7"))
