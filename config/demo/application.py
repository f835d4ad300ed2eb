"""A shop in small: products stay in a cart for some seconds each, unless the customer touches them again.

python3 application.py HOST PORT
"""

from __future__ import annotations

import random
import sys
import time

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from proxy.redis_py import MemberCommands

PRODUCTS = ("apple", "pear", "plum", "fig", "quince", "cherry")
CARTS = 200
A_SECOND = 50


class Client(MemberCommands, redis.Redis):
    """redis-py, with EXPIREMEMBER as a method."""


def customer(client: Client, cart: str) -> None:
    """Do what a customer does next."""
    product = random.choice(PRODUCTS)  # noqa: S311
    if random.random() < 0.8:  # noqa: S311
        client.hincrby(cart, product, 1)
        client.expiremember(cart, product, random.randint(2, 30))  # noqa: S311
    else:
        client.hdel(cart, product)
    client.hgetall(cart)


def main(host: str, port: int) -> None:
    """Let customers come until stopped, whatever else is restarted meanwhile."""
    retry = Retry(ConstantBackoff(0.5), 120)
    with Client(host=host, port=port, retry=retry, retry_on_error=[redis.ConnectionError]) as client:
        while True:
            customer(client, f"cart:{random.randrange(CARTS)}")  # noqa: S311
            time.sleep(1 / A_SECOND)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
