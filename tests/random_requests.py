"""Random requests of every kind on few keys, whose replies depend on nothing but the requests before them.

Left out is what tells time, chance, addresses or memory. Sets and hashes have at most four members: a server lists so
few in the same order, however they came there.
"""

from __future__ import annotations

import random
from typing import Final

KEYS: Final = tuple(f"{kind}{number}" for kind in ("h", "s", "z", "l", "t", "x") for number in range(2))
"""Two keys that likely are hashes, two sets, sorted sets, lists, texts, and two of any type."""

_MEMBERS: Final = ("a", "b", "c", "7")

# Blanks part words. h s z l t: a key that is likely of that type; k: any; m: a member; n: a number; f: a score or a
# float; e: a text; d: a database; b: an end of a range of scores; i: a place.
_TEMPLATES: Final = """
    HSET {h} {m} {n}|HSET {h} {m} {n} {m} {e}|HSET {h} {m}|HMSET {h} {m} {n}|HSETNX {h} {m} {n}|HINCRBY {h} {m} {n}
    HINCRBYFLOAT {h} {m} {f}|HDEL {h} {m}|HDEL {h} {m} {m}|HGET {h} {m}|HMGET {h} {m} {m}|HGETALL {h}|HLEN {h}
    HKEYS {h}|HVALS {h}|HEXISTS {h} {m}|HSTRLEN {h} {m}|HSCAN {h} 0|HSCAN {h} 0 MATCH {m} COUNT 100
    HRANDFIELD {x} 0|HPEXPIREAT {h} 9999999999999 FIELDS 1 {m}|HPERSIST {h} FIELDS 1 {m}|HGETDEL {h} FIELDS 1 {m}
    HSETEX {h} FNX FIELDS 1 {m} {n}|HSETEX {h} PXAT 9999999999999 FIELDS 1 {m} {n}|HGETEX {h} PERSIST FIELDS 1 {m}
    HIMPORT PREPARE {m} a 7|HIMPORT SET {h} {m} {n} {e}|HIMPORT SET {h} {m} {n}|HIMPORT DISCARD {m}
    SADD {s} {m}|SADD {s} {m} {m}|SADD {s} {m} {m} {m} {m}|SREM {s} {m}|SREM {s} {m} {m}|SMOVE {s} {s} {m}|SMEMBERS {s}
    SCARD {s}|SISMEMBER {s} {m}|SMISMEMBER {s} {m} {m}|SUNION {s} {s}|SINTER {s} {s}|SDIFF {s} {s} {s}
    SINTERCARD 2 {s} {s}|SUNIONSTORE {s} {s} {s}|SINTERSTORE {s} {s}|SDIFFSTORE {s} {s} {s}|SPOP {s} 9|SPOP {s} 0
    SSCAN {s} 0|SSCAN {s} 0 MATCH {m}|SADD {s}|SRANDMEMBER {s} 0
    ZADD {z} {f} {m}|ZADD {z} {n} {m} {n} {m}|ZADD {z} NX {n} {m}|ZADD {z} XX CH {n} {m}|ZADD {z} GT CH {f} {m}
    ZADD {z} LT {n} {m}|ZADD {z} INCR {f} {m}|ZADD {z} NX INCR {n} {m}|ZADD {z} NX XX {n} {m}|ZADD {z} {e} {m}
    ZINCRBY {z} {f} {m}|ZREM {z} {m}|ZREM {z} {m} {m}|ZPOPMIN {z}|ZPOPMAX {z} 2|ZMPOP 2 {z} {z} MIN|BZPOPMIN {z} 0.01
    ZREMRANGEBYSCORE {z} {b} {b}|ZREMRANGEBYRANK {z} {i} {i}|ZREMRANGEBYLEX {z} - +|ZUNIONSTORE {z} 2 {z} {s}
    ZUNIONSTORE {z} 2 {z} {z} WEIGHTS 2 {f} AGGREGATE MAX|ZINTERSTORE {z} 2 {z} {s}|ZDIFFSTORE {z} 2 {z} {z}
    ZRANGESTORE {z} {z} {i} {i}|ZRANGESTORE {z} {z} {b} {b} BYSCORE|ZRANGE {z} {i} {i}|ZRANGE {z} 0 -1 WITHSCORES
    ZRANGE {z} 0 -1 REV WITHSCORES|ZRANGEBYSCORE {z} {b} {b} WITHSCORES LIMIT 0 2|ZREVRANGE {z} 0 -1|ZCARD {z}
    ZRANGEBYLEX {z} - +|ZSCORE {z} {m}|ZMSCORE {z} {m} {m}|ZRANK {z} {m}|ZREVRANK {z} {m}|ZRANK {z} {m} WITHSCORE
    ZCOUNT {z} {b} {b}|ZLEXCOUNT {z} - +|ZUNION 2 {z} {z} WITHSCORES|ZINTER 2 {z} {s}|ZDIFF 2 {z} {z}
    ZINTERCARD 2 {z} {z}|ZSCAN {z} 0
    GEOADD {z} 13.{n} 38.{n} {m}|GEOADD {z} NX CH 13.{n} 38.{n} {m} 14.1 37.{n} {m}|GEODIST {z} {m} {m} km
    GEOPOS {z} {m}|GEOHASH {z} {m}|GEOSEARCH {z} FROMLONLAT 13 38 BYRADIUS 900 km ASC
    GEOSEARCHSTORE {z} {z} FROMLONLAT 13 38 BYRADIUS 900 km ASC|GEORADIUS {z} 13 38 900 km ASC STORE {z}
    LPUSH {l} {m}|RPUSH {l} {m} {m}|LPUSHX {l} {m}|RPUSHX {l} {m} {e}|LINSERT {l} BEFORE {m} {m}
    LINSERT {l} AFTER {m} {m}|LSET {l} {i} {m}|LREM {l} {i} {m}|LPOP {l}|RPOP {l} 2|LTRIM {l} {i} {i}|LTRIM {l} 0 3
    LMOVE {l} {l} LEFT RIGHT|LMOVE {l} {l} RIGHT LEFT|RPOPLPUSH {l} {l}|BLMOVE {l} {l} LEFT LEFT 0.01
    LMOVEM {l} {l} LEFT RIGHT COUNT 2 OBO|LMOVEM {l} {l} RIGHT RIGHT EXACTLY 2 BULK|LMOVEM {l} {l} LEFT LEFT
    BLMOVEM {l} {l} LEFT RIGHT 0.01 COUNT 2 OBO
    BRPOPLPUSH {l} {l} 0.01|BLPOP {l} {l} 0.01|LMPOP 2 {l} {l} LEFT COUNT 2|LRANGE {l} 0 -1|LRANGE {l} {i} {i}
    LLEN {l}|LINDEX {l} {i}|LPOS {l} {m}|LPOS {l} {m} RANK -1 COUNT 0
    SORT {l} ALPHA|SORT {s} ALPHA DESC LIMIT 0 2|SORT {z} ALPHA STORE {l}|SORT {l} ALPHA STORE {k}
    SORT {l} BY t* GET # GET t*|SORT {l} BY h*->a ALPHA GET h*->{m}|SORT {s} BY nosort GET # STORE {k}|SORT {l}
    SORT_RO {l} ALPHA|SORT_RO {s} BY h*->b ALPHA
    SET {t} {e}|SET {k} {e}|SET {t} {n} XX GET|SET {k} {n} NX|SETEX {t} 10000 {e}|GETEX {t} PERSIST|GETDEL {t}
    MSET {t} {e} {k} {n}|MSETNX {t} {e} {k} {n}|SETNX {k} {e}|GETSET {t} {n}|APPEND {t} {e}|GET {k}|MGET {k} {k} {t}
    DELEX {t} IFEQ {n}|DELEX {k}|INCREX {t} BYINT {n} UBOUND 9
    INCR {t}|INCRBY {t} {n}|DECR {t}|INCRBYFLOAT {t} {f}|STRLEN {t}|SETRANGE {t} {n} {e}|GETRANGE {t} {i} {i}
    SETBIT {t} {n} 1|GETBIT {t} {n}|BITCOUNT {t}|BITOP XOR {k} {t} {t}|BITFIELD {t} INCRBY u4 0 {n}|PFADD {x} {m}
    PFCOUNT {x}|PFMERGE {x} {x}
    XADD {x} {n}-{n} {m} {e}|XLEN {x}|XRANGE {x} - +|XDEL {x} {n}-{n}|XTRIM {x} MAXLEN 2
    DEL {k}|DEL {k} {k}|UNLINK {k}|EXISTS {k} {k}|TYPE {k}|TOUCH {k} {k}|EXPIRE {k} -1|EXPIRE {k} 10000|PERSIST {k}
    EXPIRE {k} 100 NX|EXPIRE {k} 90000 GT|PEXPIREAT {k} 9999999999999
    OBJECT ENCODING {k}|OBJECT REFCOUNT {x}|DUMP {k}|KEYS {m}*|KEYS *|SCAN 0 COUNT 1000|SCAN 0 COUNT 1000 TYPE set
    SCAN 0 MATCH s* COUNT 1000|DBSIZE|RENAME {k} {k}|RENAMENX {k} {k}|COPY {k} {k}|COPY {k} {k} REPLACE
    COPY {k} {k} DB {d} REPLACE|COPY {k} {k} DB {d}|MOVE {k} {d}|SWAPDB {d} {d}|FLUSHDB|SELECT {d}|SELECT 0|SELECT 0
    WATCH {k}|UNWATCH|PING|ECHO {e}|MULTI|MULTI|EXEC|DISCARD|NOSUCH {k}|CLIENT GETNAME|CLIENT NOSUCH {k}
    EVAL script 1 {h} {m}|EVAL script 1 {s} {m}|EVAL script 1 {z} {m}|EVAL script 1 {l} {m}|EVAL both 2 {s} {k} {m}
    EVAL broken 1 {k} {m}|EVAL script 1|EVALSHA {e} 1 {k}|EVAL_RO read 1 {k} {m}|EVAL read 1 {k} {m}
    EVAL numbers 0|EVAL status 1 {k}|EVAL wrong 1 {k} {m}
"""

_SCRIPTS: Final[dict[str, str | dict[str, str]]] = {
    "script": {
        "h": "redis.call('HDEL', KEYS[1], ARGV[1]) return redis.call('HSET', KEYS[1], ARGV[1], 1)",
        "s": "redis.call('SREM', KEYS[1], ARGV[1]) return redis.call('SADD', KEYS[1], ARGV[1])",
        "z": "redis.call('ZREM', KEYS[1], ARGV[1]) return redis.call('ZADD', KEYS[1], 1, ARGV[1])",
        "l": "redis.call('LREM', KEYS[1], 0, ARGV[1]) return redis.call('RPUSH', KEYS[1], ARGV[1])",
    },
    "both": "return {redis.call('SISMEMBER', KEYS[1], ARGV[1]), redis.call('EXISTS', KEYS[2]), {ok = 'fine'}}",
    "broken": "return redis.call('HSET', KEYS[1]",
    "wrong": "return redis.error_reply('MINE ' .. redis.call('TYPE', KEYS[1]).ok)",
    "read": "return {redis.call('TYPE', KEYS[1]), redis.call('EXISTS', KEYS[1]), ARGV[1], false, 3.7}",
    "numbers": "return {1, {2, {3, '4'}}, nil, 5}",
    "status": "return redis.status_reply(redis.call('TYPE', KEYS[1]).ok)",
}


def _lines() -> list[str]:
    return [line.strip() for row in _TEMPLATES.strip().splitlines() for line in row.split("|")]


def stream(seed: str, count: int) -> list[tuple[str, ...]]:
    """Return so many random requests, the same for the same seed."""
    chance = random.Random(seed)
    lines = _lines()
    found: list[tuple[str, ...]] = []
    # A transaction mostly comes to an end soon.
    queued = 0
    while len(found) < count:
        line = chance.choice(lines)
        if queued and chance.random() < 0.2:
            line = "EXEC"
        words = _filled(line, chance)
        queued = queued + 1 if words[0] == "MULTI" or (queued and words[0] not in ("EXEC", "DISCARD")) else 0
        found.append(words)
    return found


def _filled(line: str, chance: random.Random) -> tuple[str, ...]:
    words = tuple(_filled_word(word, chance) for word in line.split())
    if line.startswith(("EVAL ", "EVAL_RO ")):
        script = _SCRIPTS[words[1]]
        text = script if isinstance(script, str) else script[line.split("{")[1][0] if "{" in line else "s"]
        return words[0], text, *words[2:]
    spoilt = chance.random()
    if spoilt < 0.02 and words[0] not in _NO_LESS:
        return words[:-1] or words
    if spoilt < 0.04 and words[0] not in _NO_MORE:
        return (*words, chance.choice(_MEMBERS))
    return (words[0].lower(), *words[1:]) if spoilt < 0.1 else words


def _filled_word(word: str, chance: random.Random) -> str:
    found = []
    for part in word.replace("{", "\0{").replace("}", "}\0").split("\0"):
        if not part.startswith("{"):
            found.append(part)
            continue
        name = part[1:-1]
        found.append(chance.choice(_VALUES[name]))
    return "".join(found)


_NO_MORE: Final = ("BLPOP", "BLMOVE", "BLMOVEM", "BRPOPLPUSH", "BZPOPMIN", "TTL", "PTTL", "PERSIST")
"""Where one more word would be a time to wait, or make a request of the proxy's own."""

_NO_LESS: Final = ("SPOP", "SRANDMEMBER", "HRANDFIELD", "EXPIRE")
"""Where one word less would leave the reply to chance."""

_OF_TYPE: Final = {name: tuple(key for key in KEYS if key[0] == name) * 12 + KEYS for name in "hszltx"}
_VALUES: Final[dict[str, tuple[str, ...]]] = {
    **_OF_TYPE,
    "k": KEYS,
    "m": _MEMBERS,
    "n": ("0", "1", "2", "3", "9223372036854775806", "-4"),
    "f": ("1", "2.5", "-3", "1e20", "inf", "0.1", "nan"),
    "e": ("x", "", "two words", "\r\n", "12", "3.0", "y" * 70),
    "d": ("0", "0", "1", "1", "99"),
    "b": ("-inf", "(1", "2", "+inf"),
    "i": ("0", "1", "-1", "2", "-3"),
}
