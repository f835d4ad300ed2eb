"""Which service agents are online: one set, in which each sign of life keeps an agent for half a minute.

It replaces a sorted set of the times of last signs of life, which every reader has to trim first, or a key for each
agent and a SCAN.

    expiremember-proxy events set 'agents' --publish T
    python presence.py redis://127.0.0.1:6380

What can go wrong: a message reaches only current subscribers. So `watch` reads the whole set when it begins, and should
do so after each reconnect. If every absence must be acted on (reassign chats), use --stream.
"""

import sys
from collections.abc import Iterator

import redis

SECONDS = 30


def alive(r: redis.Redis, agent: str, seconds: float = SECONDS) -> None:
    """Note a sign of life: call this three times in each `seconds`."""
    with r.pipeline() as p:
        p.sadd("agents", agent)
        p.execute_command("EXPIREMEMBER", "agents", agent, int(seconds * 1000), "ms")
        p.execute()


def leave(r: redis.Redis, agent: str) -> None:
    """Log out."""
    r.srem("agents", agent)


def present(r: redis.Redis) -> set[str]:
    """Return the agents who are online now."""
    return set(r.smembers("agents"))


def watch(r: redis.Redis) -> Iterator[tuple[str, str]]:
    """Yield ("there", agent) for each agent who is online at first, then ("lost", agent) for each who goes offline."""
    with r.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe("__subkeyevent@0__:sexpired")
        listener.get_message(timeout=5)  # the subscription itself: from now on nothing is missed
        yield from (("there", agent) for agent in sorted(present(r)))
        for message in listener.listen():
            size, _, rest = message["data"].encode().partition(b":")  # sizes are in bytes
            key, members = rest[: int(size)], rest[int(size) + 1 :]
            while key == b"agents" and members:  # 4:anna,3:bob
                size, _, rest = members.partition(b":")
                yield "lost", rest[: int(size)].decode()
                members = rest[int(size) + 1 :]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python presence.py redis://HOST:PORT")
    for what, who in watch(redis.Redis.from_url(sys.argv[1], decode_responses=True)):
        print(what, who, flush=True)
