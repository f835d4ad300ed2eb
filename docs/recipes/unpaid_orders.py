"""At most three unpaid orders a user, each for half an hour; when an order expires, its stock returns.

It replaces a job every minute that looks for old orders and can die between two updates. To run it:
    expiremember-proxy events set 'unpaid:*' --stream lapsed --value --maxlen 0
    python unpaid_orders.py redis://127.0.0.1:6380 worker-1

What can go wrong: two orders with one number are one order. If the whole key is removed (DEL, EXPIRE), no entries are
written, and the stock does not return. Nor does it if the stream is trimmed: `work` deletes entries that are done.
"""

import contextlib
import json
import os
import sys

import redis

SECONDS, MOST = float(os.environ.get("UNPAID_SECONDS", "1800")), 3
IDLE_MS = int(os.environ.get("IDLE_MS", "60000"))  # after which another worker takes over
RETURN = """if redis.call('XACK', KEYS[1], 'stock', ARGV[1]) == 1 then
    redis.call('XDEL', KEYS[1], ARGV[1]) redis.call('INCRBY', KEYS[2], ARGV[2]) end"""


def place(r: redis.Redis, user: str, order: str, item: str, count: int) -> bool:
    """Place an order; return False if the user has too many unpaid orders or there is too little stock."""
    unpaid, stock = f"unpaid:{user}", f"stock:{item}"
    with r.pipeline() as p:
        while True:
            with contextlib.suppress(redis.WatchError):  # somebody else was quicker: look again
                p.watch(unpaid, stock)
                if p.hlen(unpaid) >= MOST or int(p.get(stock) or 0) < count:
                    return False
                p.multi()
                p.hset(unpaid, order, json.dumps([item, count]))
                p.execute_command("EXPIREMEMBER", unpaid, order, int(SECONDS * 1000), "ms")
                p.decrby(stock, count)
                p.execute()
                return True


def pay(r: redis.Redis, user: str, order: str) -> bool:
    """Pay for an order; return False if it has expired."""
    return r.hdel(f"unpaid:{user}", order) == 1


def work(r: redis.Redis, name: str) -> None:
    """Return the stock of expired orders, each in one step with its XACK: exactly once, even if a worker dies."""
    while True:
        claimed = [one for one in r.xautoclaim("lapsed", "stock", name, min_idle_time=IDLE_MS, count=100)[1] if one[1]]
        fresh = r.xreadgroup("stock", name, {"lapsed": ">"}, count=100, block=500)
        for number, entry in claimed + (fresh[0][1] if fresh else []):
            item, count = json.loads(entry["value"])
            r.eval(RETURN, 2, "lapsed", f"stock:{item}", number, count)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python unpaid_orders.py redis://HOST:PORT WORKER")
    connection = redis.Redis.from_url(sys.argv[1], decode_responses=True)
    with contextlib.suppress(redis.ResponseError):  # another worker has made it
        connection.xgroup_create("lapsed", "stock", id="0", mkstream=True)
    work(connection, sys.argv[2])
