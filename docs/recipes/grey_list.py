"""A grey list: an address from which five logins fail within a minute has to wait for ten minutes.

It replaces two keys for each address, or a job that clears old rows from a table.

    python grey_list.py redis://127.0.0.1:6380 192.0.2.7

What can go wrong: because of NX the minute begins with the first failure and is not extended by later ones. Without NX
an address with a failure every minute would be blocked in the end. All members of one key are on one server: if there
are very many addresses, split `greylist` into several keys.
"""

import sys

import redis

FAILURES, WITHIN, PENALTY = 5, 60, 600


def may_try(r: redis.Redis, address: str) -> bool:
    """Return whether an address may try to log in."""
    return not r.sismember("greylist", address)


def failed(r: redis.Redis, address: str, within: float = WITHIN, penalty: float = PENALTY) -> bool:
    """Count a failure; return whether the address has been put on the list."""
    with r.pipeline() as p:
        p.hincrby("failures", address, 1)
        p.execute_command("EXPIREMEMBER", "failures", address, int(within * 1000), "ms", "NX")
        count, _ = p.execute()
    if count < FAILURES:
        return False
    with r.pipeline() as p:
        p.sadd("greylist", address)
        p.execute_command("EXPIREMEMBER", "greylist", address, int(penalty * 1000), "ms")
        p.hdel("failures", address)
        p.execute()
    return True


def seconds_left(r: redis.Redis, address: str) -> int:
    """Return how many seconds an address still has to wait."""
    return max(0, r.execute_command("TTL", "greylist", address))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python grey_list.py redis://HOST:PORT ADDRESS")
    connection = redis.Redis.from_url(sys.argv[1], decode_responses=True)
    while may_try(connection, sys.argv[2]):
        print("failed", failed(connection, sys.argv[2]))
    print("wait", seconds_left(connection, sys.argv[2]), "s")
