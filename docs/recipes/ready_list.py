"""A delay queue with a list: workers pop jobs that are due; nothing polls, and there is no consumer group.

It replaces a sorted set of due times that workers poll, Celery's ETA and Redisson's delayed queue.

    expiremember-proxy events set 'delayed' --list ready --value
    python ready_list.py redis://127.0.0.1:6380 worker-1

What can go wrong: if a worker dies during a job, the job stays in the list `working:NAME`. The worker does it again
when it is restarted under the same name, so it must be safe to do a job twice. If it is never restarted, the job stays
in that list.
"""

import sys

import redis


def put(r: redis.Redis, job: str, payload: str, seconds: float) -> None:
    """Schedule a job, in place of a waiting job of that name; after 1 ms at least, because 0 ms would remove it."""
    with r.pipeline() as p:
        p.hset("delayed", job, payload)
        p.execute_command("EXPIREMEMBER", "delayed", job, max(1, int(seconds * 1000)), "ms")
        p.execute()


def cancel(r: redis.Redis, job: str) -> bool:
    """Drop a job; return False if it is too late."""
    return r.hdel("delayed", job) == 1


def run(r: redis.Redis, mine: str, payload: str) -> None:
    """Do a job, and note that it is done."""
    print("running", payload, flush=True)  # the work itself
    with r.pipeline() as p:
        p.lrem(mine, 1, payload)
        p.rpush("log", payload)
        p.execute()


def work(r: redis.Redis, name: str) -> None:
    """Run jobs until killed; begin with jobs that an earlier worker of this name has not finished."""
    mine = f"working:{name}"
    for payload in r.lrange(mine, 0, -1):
        run(r, mine, payload)
    while True:
        payload = r.blmove("ready", mine, 1, "LEFT", "RIGHT")
        if payload is not None:
            run(r, mine, payload)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python ready_list.py redis://HOST:PORT WORKER")
    work(redis.Redis.from_url(sys.argv[1], decode_responses=True), sys.argv[2])
