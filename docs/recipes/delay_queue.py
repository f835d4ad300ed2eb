"""A delay queue: several workers run jobs when they are due, each job at least once.

It replaces a sorted set of due times that workers poll, and RDelayedQueue, which loses jobs when a worker dies.

    expiremember-proxy events set 'delayed' --stream jobs --value --maxlen 0
    python delay_queue.py redis://127.0.0.1:6380 worker-1

What can go wrong: if a worker dies between a job and its XACK, or takes longer than IDLE_MS, another worker does the
job again, so doing a job twice must be safe. `done` remembers for a day which jobs have been done.
"""

import contextlib
import os
import sys

import redis

IDLE_MS = int(os.environ.get("IDLE_MS", "60000"))


def put(r: redis.Redis, job: str, payload: str, seconds: float) -> None:
    """Schedule a job, in place of a waiting job of that name; after 1 ms at least, because 0 ms would remove it."""
    with r.pipeline() as p:
        p.hset("delayed", job, payload)
        p.execute_command("EXPIREMEMBER", "delayed", job, max(1, int(seconds * 1000)), "ms")
        p.execute()


def cancel(r: redis.Redis, job: str) -> bool:
    """Drop a job; return False if it is too late."""
    return r.hdel("delayed", job) == 1


def finish(r: redis.Redis, number: str, job: str) -> None:
    """Note that a job has been done, and remove its entry from the stream, in one step."""
    with r.pipeline() as p:
        p.sadd("done", number)
        p.execute_command("EXPIREMEMBER", "done", number, 86_400)
        p.rpush("log", job)
        p.xack("jobs", "workers", number)
        p.xdel("jobs", number)
        p.execute()


def work(r: redis.Redis, name: str) -> None:
    """Run jobs until killed."""
    while True:
        claimed = r.xautoclaim("jobs", "workers", name, min_idle_time=IDLE_MS, count=10)[1]
        fresh = r.xreadgroup("workers", name, {"jobs": ">"}, count=10, block=500)
        for number, entry in claimed + (fresh[0][1] if fresh else []):
            if entry and not r.sismember("done", number):  # a deleted entry is None
                print("running", entry["member"], entry["value"], flush=True)  # the work itself
                finish(r, number, entry["member"])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python delay_queue.py redis://HOST:PORT WORKER")
    connection = redis.Redis.from_url(sys.argv[1], decode_responses=True)
    with contextlib.suppress(redis.ResponseError):  # another worker has made it
        connection.xgroup_create("jobs", "workers", id="0", mkstream=True)
    work(connection, sys.argv[2])
