"""Cache tags: drop all pages that show a product, without tags that grow for ever.

It replaces a plain set for each tag, which keeps the names of pages that have expired.

    python cache_tags.py redis://127.0.0.1:6380

What can go wrong: if a tag is dropped while a page is rendered, the page may be stored after that, with outdated
content. So `put` takes the numbers of drops from before the rendering, and does not store a page whose tag has been
dropped since.
"""

import sys

import redis


def numbers(r: redis.Redis, tags: list[str]) -> list[str | None]:
    """Return how often each tag has been dropped: call this before you render a page."""
    return r.hmget("tag-drops", tags)


def put(r: redis.Redis, page: str, html: str, tags: list[str], before: list[str | None], seconds: float) -> bool:
    """Store a page under its tags; return False if one of them has been dropped meanwhile."""
    milliseconds = int(seconds * 1000)
    with r.pipeline() as p:
        p.watch("tag-drops")
        if p.hmget("tag-drops", tags) != before:
            return False
        p.multi()
        p.set(f"page:{page}", html, px=milliseconds)
        for tag in tags:
            p.sadd(f"tag:{tag}", page)
            p.execute_command("EXPIREMEMBER", f"tag:{tag}", page, milliseconds, "ms")
        try:
            p.execute()
        except redis.WatchError:  # perhaps only another tag was dropped; not storing is always safe
            return False
    return True


def drop(r: redis.Redis, tag: str) -> int:
    """Drop all pages with a tag; return how many there were."""
    with r.pipeline() as p:
        p.hincrby("tag-drops", tag, 1)
        p.smembers(f"tag:{tag}")
        p.unlink(f"tag:{tag}")
        _, pages, _ = p.execute()
    return r.unlink(*(f"page:{page}" for page in pages)) if pages else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python cache_tags.py redis://HOST:PORT")
    connection = redis.Redis.from_url(sys.argv[1], decode_responses=True)
    tags = ["product:7", "shop"]
    print(put(connection, "/7", "<html>", tags, numbers(connection, tags), 60), drop(connection, "product:7"))
