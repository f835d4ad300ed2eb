"""Requests by the hundred for comparing the proxy with the server behind it: one line a request, quoted as in a shell.

Backslash escapes stand for bytes. A reply that comes in no particular order is marked by a ~ before the request. What
differs from one run to the next (times, client ids, random members) is left out. Sets have at most four members where
order counts: a server's hash table lists so few in the same order, however it came about.
"""

from __future__ import annotations

import codecs
import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One request of a scenario.

    Attributes:
        arguments: the request.
        unordered: whether the elements of its reply come in no particular order.
    """

    arguments: list[bytes]
    unordered: bool


def parse(text: str) -> list[Line]:
    """Read a scenario."""
    lines = []
    for line in text.strip().splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            words = shlex.split(stripped.removeprefix("~"))
            arguments = [codecs.decode(word, "unicode_escape").encode("latin-1") for word in words]
            lines.append(Line(arguments, stripped.startswith("~")))
    return lines


SCENARIOS: dict[str, list[Line]] = {
    name: parse(text)
    for name, text in {
        "strings": r"""
            SET s value
            GET s
            get s
            GeT s
            SET s other NX
            SET s other XX GET
            SET s v2 KEEPTTL
            SET s v3 EX 100
            TTL s
            GETEX s PERSIST
            TTL s
            SET s v EX 100 PX 100
            SET s v EX 0
            SET s v EX abc
            SET t v NX
            SETNX t w
            SETEX t 100 w
            SETEX t 0 w
            PSETEX t 100000 w
            GETSET t x
            GETDEL t
            GETDEL t
            SET t x
            DELEX t IFEQ y
            DELEX t IFEQ x
            DELEX t
            DELEX
            INCREX n BYINT 5 UBOUND 7
            INCREX n BYINT 5 UBOUND 7
            APPEND a hello
            APPEND a " world"
            STRLEN a
            GETRANGE a 0 4
            SUBSTR a -5 -1
            SETRANGE a 6 there
            SETRANGE a -1 there
            SETRANGE b 5 padded
            GET b
            MSET k1 v1 k2 v2 k3 "v 3"
            MGET k1 k2 nope k3
            MSETNX k1 x new y
            MSETNX n1 x n2 y
            INCR n
            INCRBY n 41
            DECR n
            DECRBY n -9
            INCRBYFLOAT n 0.25
            INCR n
            INCRBYFLOAT n 3.0e3
            INCRBYFLOAT n nan
            SET big 9223372036854775807
            INCR big
            DECRBY big -9223372036854775808
            LCS k1 k2
            LCS k1 k2 LEN
            LCS k1 k2 IDX
            SET binary "\x00\r\n\xff\xfe*1\r\n$4\r\nPING\r\n"
            GET binary
            STRLEN binary
            SET "" "empty key"
            GET ""
            SET nothing ""
            GET nothing
            OBJECT ENCODING n
            OBJECT REFCOUNT s
            OBJECT HELP
            DUMP k1
            TYPE k1
            TOUCH k1 k2 nope
            EXISTS k1 k1 nope
            GETRANGE nope 0 -1
            DEL k1 k2 nope
            UNLINK k3 nope
        """,
        "bits": r"""
            SETBIT b 7 1
            SETBIT b 100 1
            GETBIT b 7
            GETBIT b 8
            SETBIT b -1 1
            SETBIT b 0 2
            BITCOUNT b
            BITCOUNT b 0 0
            BITCOUNT b 0 7 BIT
            BITPOS b 1
            BITPOS b 0 1
            BITFIELD b SET u8 0 255 GET u4 0 INCRBY i5 100 1
            BITFIELD b OVERFLOW FAIL INCRBY u2 102 9
            BITFIELD_RO b GET u8 0
            BITFIELD b GET u64 0
            SET x abc
            SET y abd
            BITOP AND d x y
            BITOP NOT d x
            BITOP NOT d x y
            GET d
            PFADD h a b c d
            PFADD h a
            PFCOUNT h
            PFADD h2 d e
            PFCOUNT h h2
            PFMERGE h3 h h2
            PFCOUNT h3
            PFADD x a
        """,
        "hashes": r"""
            HSET h f1 v1 f2 v2
            HSET h f1 again f3 v3
            HSET h f4
            HMSET h f5 v5 f6 v6
            HGET h f1
            HGET h nope
            HGETALL h
            HMGET h f1 nope f2
            HKEYS h
            HVALS h
            HLEN h
            HEXISTS h f1
            HEXISTS h nope
            HSTRLEN h f1
            HSETNX h f1 x
            HSETNX h f9 x
            HINCRBY h n 5
            HINCRBY h n -7
            HINCRBY h f1 1
            HINCRBY h n 9223372036854775807
            HINCRBY h n 9223372036854775807
            HINCRBY h n abc
            HINCRBYFLOAT h fl 0.1
            HINCRBYFLOAT h fl 1e20
            HINCRBYFLOAT h fl inf
            HINCRBYFLOAT h f1 1
            HINCRBYFLOAT h fl
            HDEL h f1 nope
            HDEL h nope
            HDEL h
            HSCAN h 0
            HSCAN h 0 MATCH f* COUNT 100
            HSCAN h 0 NOVALUES
            HSCAN h abc
            HRANDFIELD nope
            HRANDFIELD nope 3 WITHVALUES
            HSET one f v
            HRANDFIELD one
            HRANDFIELD one 2 WITHVALUES
            HRANDFIELD one -2
            OBJECT ENCODING h
            HGETALL nope
            HSET h "\x00\xff" "\r\n"
            HGET h "\x00\xff"
            HSET h "" ""
            HGETALL h
            HSETEX h EX 100 FIELDS 1 f v
            HGETDEL h FIELDS 1 f2
            HIMPORT
            HIMPORT PREPARE fs a b
            HIMPORT SET i fs 1 2
            HIMPORT SET i fs 1
            HIMPORT SET i nope 1 2
            HIMPORT SET i
            HIMPORT NOPE i fs
            HIMPORT HELP
            HGET i a
            HIMPORT DISCARD fs
            HIMPORT DISCARDALL
            HIMPORT SET i fs 1 2
            HEXPIRE h 100 FIELDS 1 f3
            HTTL h FIELDS 1 f3
            HDEL h f1 f2 f3 f4 f5 f6 f9 n fl "" "\x00\xff" f
            EXISTS h
            HSET s
        """,
        "lists": r"""
            RPUSH l a b c
            LPUSH l z
            LPUSHX l y
            RPUSHX nope y
            LRANGE l 0 -1
            LINDEX l 0
            LINDEX l 99
            LINSERT l BEFORE a new
            LINSERT l AFTER nope x
            LINSERT nope BEFORE a x
            LINSERT l SIDEWAYS a x
            LSET l 0 first
            LSET l 99 x
            LSET nope 0 x
            LLEN l
            LPOS l a
            LPOS l nope
            LPOS l a RANK -1 COUNT 0
            LPOS l a RANK 0
            LREM l 0 a
            LREM l 0 nope
            LTRIM l 0 2
            LRANGE l 0 -1
            LPOP l
            RPOP l
            LPOP l 5
            LPOP l
            LPOP l 0
            LPOP nope 2
            LPOP l -1
            RPUSH src 1 2 3
            LMOVE src dst LEFT RIGHT
            LMOVE src src LEFT RIGHT
            LMOVE nope dst LEFT RIGHT
            LMOVE src dst UP DOWN
            RPOPLPUSH src dst
            RPOPLPUSH nope dst
            LRANGE dst 0 -1
            LMPOP 2 nope dst LEFT COUNT 10
            LMPOP 1 nope LEFT
            LMPOP 0 nope LEFT
            BLPOP src 0
            BRPOP nope src 1
            BLPOP nope 0.01
            BLMOVE nope dst LEFT RIGHT 0.01
            RPUSH src 4 5 6
            LMOVEM src dst LEFT RIGHT COUNT 2 OBO
            LMOVEM src dst LEFT RIGHT
            LMOVEM src dst RIGHT LEFT EXACTLY 9 BULK
            LMOVEM nope dst LEFT RIGHT COUNT 2 OBO
            LMOVEM src dst LEFT RIGHT COUNT 0 OBO
            LMOVEM src dst UP DOWN
            LMOVEM src
            BLMOVEM src dst LEFT RIGHT 0.01 COUNT 2 BULK
            BLMOVEM nope dst LEFT RIGHT 0.01 COUNT 2 OBO
            BLMOVEM nope dst LEFT RIGHT x
            LRANGE dst 0 -1
            BLMPOP 0.01 1 nope LEFT
            BLPOP nope abc
            BLPOP nope -1
            RPUSH l 1
            OBJECT ENCODING l
        """,
        "sets": r"""
            SADD s a b c
            SADD s a
            SADD s
            SCARD s
            SISMEMBER s a
            SISMEMBER s nope
            SMISMEMBER s a nope b
            SMEMBERS s
            SADD t b c d
            SINTER s t
            SINTER s nope
            SINTERCARD 2 s t
            SINTERCARD 2 s t LIMIT 1
            SINTERCARD 0 s
            ~SUNION s t
            SDIFF s t
            SINTERSTORE d s t
            SCARD d
            SUNIONSTORE d s t
            ~SMEMBERS d
            SDIFFSTORE d s t
            SMEMBERS d
            SDIFFSTORE d s s
            EXISTS d
            SMOVE s t a
            SMOVE s t nope
            SMOVE nope t a
            SMOVE s s b
            SREM s b nope
            SREM s
            ~SSCAN t 0
            SSCAN t 0 MATCH b COUNT 100
            SADD ints 1 2 3
            SMEMBERS ints
            OBJECT ENCODING ints
            SADD ints x
            ~SMEMBERS ints
            SADD single m
            SRANDMEMBER single
            SRANDMEMBER single 5
            SRANDMEMBER single -3
            SPOP single
            SPOP single
            SPOP single 3
            SPOP nope -1
            SADD s "\x00\r\n\xff" ""
            ~SMEMBERS s
            SORT ints ALPHA DESC
            SORT ints
            SORT t ALPHA LIMIT 0 2 GET # GET nope_*
            SORT t ALPHA STORE sorted
            LRANGE sorted 0 -1
            SORT_RO t ALPHA
        """,
        "sorted sets": r"""
            ZADD z 1 a 2 b 3 c
            ZADD z 5 a
            ZADD z NX 9 a 4 d
            ZADD z XX CH 6 a 7 nope
            ZADD z GT CH 1 a
            ZADD z LT 1 a
            ZADD z INCR 2.5 a
            ZADD z NX INCR 1 a
            ZADD z NX XX 1 a
            ZADD z GT LT 1 a
            ZADD z INCR 1 a 2 b
            ZADD z abc a
            ZADD z 1
            ZADD z nan a
            ZADD z inf top -inf bottom
            ZSCORE z a
            ZSCORE z nope
            ZSCORE z top
            ZMSCORE z a nope top
            ZINCRBY z 1.5 b
            ZINCRBY z 1e20 b
            ZINCRBY z -inf top
            ZINCRBY z x b
            ZINCRBY z 3 new
            ZCARD z
            ZCOUNT z -inf +inf
            ZCOUNT z (1 3
            ZCOUNT z x y
            ZRANK z a
            ZRANK z nope
            ZREVRANK z a
            ZRANK z a WITHSCORE
            ZRANGE z 0 -1
            ZRANGE z 0 -1 WITHSCORES
            ZRANGE z 0 -1 REV WITHSCORES
            ZRANGE z (1 +inf BYSCORE LIMIT 0 2 WITHSCORES
            ZREVRANGE z 0 1 WITHSCORES
            ZRANGEBYSCORE z -inf +inf WITHSCORES LIMIT 1 2
            ZREVRANGEBYSCORE z +inf 2
            ZADD lex 0 a 0 b 0 c
            ZRANGEBYLEX lex [a (c
            ZREVRANGEBYLEX lex + -
            ZLEXCOUNT lex - +
            ZRANGE lex [b + BYLEX
            ZRANGEBYLEX lex a c
            ZREM z a nope
            ZREM z
            ZPOPMIN z
            ZPOPMAX z
            ZPOPMIN z 2
            ZPOPMAX z 0
            ZPOPMIN nope
            ZPOPMIN z -1
            ZMPOP 1 lex MIN COUNT 2
            ZMPOP 1 nope MAX
            BZPOPMIN lex 1
            BZPOPMAX nope 0.01
            ZADD x 1 a 2 b
            ZADD y 10 b 20 c
            ZUNION 2 x y WITHSCORES
            ZINTER 2 x y WEIGHTS 2 3 AGGREGATE MAX WITHSCORES
            ZDIFF 2 x y WITHSCORES
            ZINTERCARD 2 x y
            ZUNIONSTORE d 2 x y
            ZINTERSTORE d 2 x y WEIGHTS 1 0.5
            ZDIFFSTORE d 2 x y
            ZRANGE d 0 -1 WITHSCORES
            ZUNIONSTORE d 0 x
            ZRANGESTORE d x 0 -1
            ZREMRANGEBYRANK x 0 0
            ZREMRANGEBYSCORE y 0 10
            ZADD y 0 p 0 q
            ZREMRANGEBYLEX y [p [p
            ZSCAN y 0
            ZRANDMEMBER nope
            ZRANDMEMBER nope 2
            ZADD one 1.25 m
            ZRANDMEMBER one
            ZRANDMEMBER one 2 WITHSCORES
            OBJECT ENCODING y
            ZADD prec 0.1 a 3.0 b 1e300 c 17179869184.5 d -0 e
            ZRANGE prec 0 -1 WITHSCORES
        """,
        "geo": r"""
            GEOADD g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania
            GEOADD g NX CH 13 38 Palermo
            GEOADD g XX CH 13.4 38.1 Palermo
            GEOADD g 200 100 nowhere
            GEOADD g 1 2
            GEODIST g Palermo Catania
            GEODIST g Palermo Catania km
            GEODIST g Palermo nope
            GEOHASH g Palermo nope
            GEOPOS g Palermo nope
            GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km ASC WITHCOORD WITHDIST WITHHASH
            GEOSEARCH g FROMMEMBER Palermo BYBOX 400 400 km ASC COUNT 1
            GEOSEARCHSTORE near g FROMLONLAT 15 37 BYRADIUS 200 km STOREDIST
            ZRANGE near 0 -1
            GEORADIUS g 15 37 200 km ASC WITHDIST
            GEORADIUS g 15 37 200 km STORE near
            GEORADIUSBYMEMBER g Palermo 100 km
            GEORADIUS_RO g 15 37 1 km
        """,
        "streams": r"""
            XADD x 1-1 f v
            XADD x 1-2 f v g w
            XADD x 1-1 f v
            XADD x 2-0 f
            XADD nope NOMKSTREAM * f v
            XADD x MAXLEN 3 3-0 f v
            XLEN x
            XRANGE x - +
            XREVRANGE x + - COUNT 1
            XRANGE x (1-1 +
            XREAD COUNT 2 STREAMS x 0
            XREAD STREAMS x $
            XREAD BLOCK 10 STREAMS x $
            XREAD STREAMS x
            XGROUP CREATE x g 0
            XGROUP CREATE x g 0
            XGROUP CREATE nope g $
            XGROUP CREATECONSUMER x g c0
            XREADGROUP GROUP g c1 COUNT 1 STREAMS x >
            XREADGROUP GROUP g c1 STREAMS x 0
            XREADGROUP GROUP nope c1 STREAMS x >
            XPENDING x g
            XACK x g 1-1
            XACK x g 9-9
            XREADGROUP GROUP g c1 NOACK STREAMS x >
            XCLAIM x g c2 0 1-2 JUSTID
            XAUTOCLAIM x g c2 0 0 JUSTID
            XINFO STREAM x
            XINFO GROUPS x
            XDEL x 1-2
            XTRIM x MAXLEN 1
            XSETID x 9-9
            XGROUP DELCONSUMER x g c1
            XGROUP DESTROY x g
            XINFO GROUPS x
        """,
        "keys": r"""
            SET a 1
            HSET h f v
            SADD s m
            ZADD z 1 m
            ~KEYS *
            KEYS h
            KEYS nope*
            KEYS
            DBSIZE
            DBSIZE x
            ~SCAN 0 COUNT 1000
            SCAN 0 COUNT 1000 MATCH h
            SCAN 0 COUNT 1000 TYPE set
            SCAN 0 MATCH
            SCAN abc
            SCAN
            EXPIRE a 100
            TTL a
            EXPIRE a 200 NX
            EXPIRE a 50 GT
            EXPIRE a 300 XX
            EXPIRE nope 100
            EXPIRE a abc
            EXPIRE a 9223372036854775807
            PERSIST a
            PERSIST a
            TTL a
            PTTL a
            TTL nope
            PTTL nope
            EXPIREAT a 99999999999
            EXPIRETIME a
            PEXPIREAT a 99999999999999
            PEXPIRETIME a
            EXPIRETIME nope
            TTL
            PERSIST
            EXPIRE h -1
            EXISTS h
            HSET h f v g w
            EXPIRE h 100
            TTL h
            RENAME h h2
            TTL h2
            RENAME nope x
            RENAME h2 h2
            RENAMENX h2 s
            RENAMENX h2 h
            RENAME h
            TYPE h
            COPY h copy
            COPY h copy
            COPY h copy REPLACE
            COPY h h
            COPY nope x
            COPY h copy DB 99
            COPY h copy DB abc
            COPY h copy BOGUS
            HGETALL copy
            MOVE s 1
            MOVE s 1
            MOVE nope 1
            MOVE a 0
            MOVE a 99
            MOVE a abc
            OBJECT ENCODING a
            OBJECT FREQ a
            OBJECT IDLETIME nope
            TYPE s
            TYPE nope
            DEL a h copy z
            RANDOMKEY
            SET only 1
            RANDOMKEY
            DUMP nope
            RESTORE r 0 broken
            RESTORE only 0 broken
            SORT nope
            WAIT 0 0
            WAIT 1 1
        """,
        "databases": r"""
            SELECT 1
            SET k one
            SELECT 0
            GET k
            SET k zero
            SWAPDB 0 1
            GET k
            SELECT 1
            GET k
            MOVE k 2
            DBSIZE
            SELECT 2
            DBSIZE
            COPY k c DB 3
            SELECT 3
            GET c
            FLUSHDB
            DBSIZE
            SELECT 99
            SELECT abc
            SELECT -1
            SELECT
            SWAPDB 0 99
            FLUSHDB ASYNC
            FLUSHALL SYNC
            FLUSHALL bogus
        """,
        "transactions": r"""
            MULTI
            SET k v
            HSET h f v
            SADD s a b
            ZADD z 1.5 m
            ZINCRBY z 1 m
            HGETALL h
            GET nope
            EXEC
            MULTI
            EXEC
            MULTI
            INCR k
            HINCRBY h f 1
            LPUSH k x
            TTL h
            EXEC
            MULTI
            SET k
            EXEC
            MULTI
            NOSUCHCOMMAND
            GET k
            EXEC
            MULTI
            MULTI
            EXEC
            DISCARD
            EXEC
            MULTI
            SET k other
            DISCARD
            GET k
            WATCH k
            MULTI
            GET k
            EXEC
            WATCH k
            SET k changed
            MULTI
            GET k
            EXEC
            WATCH h
            HSET h f changed
            UNWATCH
            MULTI
            HGET h f
            EXEC
            MULTI
            WATCH k
            EXEC
            MULTI
            HSET h
            EXEC
            MULTI x
            EXEC x
            MULTI
            SELECT 1
            SET k db1
            SELECT 0
            EXEC
            MULTI
            PING
            ECHO hi
            BLPOP nope 0
            DBSIZE
            ~KEYS h*
            TYPE z
            EVAL "return {1, 'two', redis.call('GET', KEYS[1])}" 1 k
            EXEC
            MULTI
            EVAL "return redis.call('LPUSH', KEYS[1], 'x')" 1 k
            EVALSHA ffffffffffffffffffffffffffffffffffffffff 0
            EXEC
            MULTI
            RENAME h h2
            SMOVE s t a
            SPOP nope
            SORT s ALPHA
            COPY h2 h3
            DEL h2
            EXEC
        """,
        "scripts": r"""
            EVAL "return 1" 0
            EVAL "return 'bulk'" 0
            EVAL "return {1, 2, {3, 'four'}, 5.9}" 0
            EVAL "return nil" 0
            EVAL "return false" 0
            EVAL "return true" 0
            EVAL "return {}" 0
            EVAL "return {1, nil, 3}" 0
            EVAL "return redis.status_reply('FINE')" 0
            EVAL "return redis.error_reply('MY error')" 0
            EVAL "return {ok = 'fine'}" 0
            EVAL "return {err = 'ERR own'}" 0
            EVAL "return KEYS[1] .. ARGV[1]" 1 k v
            EVAL "return redis.call('SET', KEYS[1], ARGV[1])" 1 k v
            EVAL "return redis.call('GET', KEYS[1])" 1 k
            EVAL "return redis.call('LPUSH', KEYS[1], 'x')" 1 k
            EVAL "return redis.pcall('LPUSH', KEYS[1], 'x')" 1 k
            EVAL "return redis.call('NOSUCH')" 0
            EVAL "return redis.call()" 0
            EVAL "error('thrown')" 0
            EVAL "return undefinedvariable" 0
            EVAL "this is no lua" 0
            EVAL "redis.setresp(3); return redis.call('HGETALL', KEYS[1])" 1 nope
            EVAL "redis.call('HSET', KEYS[1], 'f', 'v'); redis.setresp(3); return redis.call('HGETALL', KEYS[1])" 1 h
            EVAL "redis.setresp(3); return {double = 3.5}" 0
            EVAL "redis.setresp(3); return {map = {f = 'v'}}" 0
            EVAL "redis.setresp(3); return {set = {m = true}}" 0
            EVAL "redis.setresp(3); return true" 0
            EVAL "return redis.sha1hex('x')" 0
            EVAL "return cjson.encode({1, 2})" 0
            EVAL "return struct.pack('>I4', 258)" 0
            EVAL "return 1"
            EVAL "return 1" abc
            EVAL "return 1" -1
            EVAL "return 1" 2 k
            SCRIPT LOAD "return 'loaded'"
            EVALSHA 1b936e3fe509bcbc9cd0664897bbe8fd0cac101b 0
            EVALSHA 2ab4fe8b7ed9ee0a1ff45a4a66fbaa22e5bf1f05 0
            EVALSHA short 0
            SCRIPT EXISTS ffffffffffffffffffffffffffffffffffffffff
            SCRIPT KILL
            SCRIPT NOSUCH
            EVAL_RO "return redis.call('GET', KEYS[1])" 1 k
            EVAL_RO "return redis.call('SET', KEYS[1], 'v')" 1 k
            FUNCTION LOAD REPLACE "#!lua name=lib\nredis.register_function('f', function(k, a) return {k[1], a[1]} end)"
            FCALL f 1 k a
            FCALL nosuch 0
            FCALL_RO f 1 k a
            FUNCTION LIST
            FUNCTION DELETE lib
            FUNCTION DELETE lib
            FUNCTION STATS
        """,
        "connection": r"""
            PING
            PING hello
            PING a b
            ECHO "bytes \x00\xff"
            ECHO
            CLIENT GETNAME
            CLIENT SETNAME me
            CLIENT GETNAME
            CLIENT SETNAME "not allowed"
            CLIENT SETNAME ""
            CLIENT SETINFO LIB-NAME tests
            CLIENT NO-EVICT ON
            CLIENT NO-TOUCH ON
            CLIENT GETREDIR
            CLIENT TRACKINGINFO
            CLIENT CACHING YES
            CLIENT TRACKING ON REDIRECT 99999999
            CLIENT TRACKING BOGUS
            CLIENT TRACKING OFF
            CLIENT UNBLOCK 99999999
            CLIENT KILL ID 99999999
            CLIENT KILL 127.0.0.1:1
            CLIENT REPLY ON
            CLIENT REPLY BOGUS
            CLIENT BOGUS
            CLIENT
            AUTH wrong
            AUTH nosuchuser wrong
            AUTH
            ACL WHOAMI
            ACL CAT nosuch
            ACL GETUSER nosuch
            ACL DELUSER nosuch
            ACL USERS
            HELLO
            HELLO 2
            GET nope
            HELLO 3
            GET nope
            HELLO 4
            HELLO abc
            HELLO 2 SETNAME named
            CLIENT GETNAME
            HELLO 2 AUTH nosuchuser wrong
            HELLO 2 BOGUS
            READONLY
            READWRITE
            ASKING
            CLUSTER INFO
            CLUSTER KEYSLOT a
            CONFIG GET maxmemory
            CONFIG GET nosuch
            CONFIG SET nosuch x
            CONFIG NOSUCH
            COMMAND LIST FILTERBY PATTERN get*
            COMMAND INFO get
            COMMAND INFO nosuch
            COMMAND GETKEYS MSET a 1 b 2
            COMMAND DOCS get
            DEBUG NOSUCH
            PUBLISH nobody hello
            PUBSUB CHANNELS nosuch*
            PUBSUB NUMSUB nosuch
            SPUBLISH nobody hello
            UNSUBSCRIBE
            PUNSUBSCRIBE nosuch
            MODULE LIST
            REPLICAOF
            ROLE
            LATENCY RESET
            SLOWLOG HELP
            RESET
            CLIENT GETNAME
        """,
        "errors": r"""
            NOSUCH
            NOSUCH a b "c d"
            nosuch "line\r\nbreak"
            "" empty
            "\x00" zero
            "SET\x00" k v
            "SET " k v
            SET s v
            HSET s f v
            HGET s f
            SADD s m
            ZADD s 1 m
            LPUSH s x
            XADD s 1-1 f v
            SMEMBERS s
            ZRANGE s 0 -1
            ZINCRBY s 1 m
            HINCRBY s f 1
            HINCRBYFLOAT s f 1
            HDEL s f
            SREM s m
            ZREM s m
            SMOVE s t m
            GEOADD s 1 1 m
            HSETNX s f v
            LINSERT s BEFORE a b
            LSET s 0 x
            PFADD s x
            HSET h f v
            GET h
            INCR h
            APPEND h x
            SADD h m
            ZADD h 1 m
            SUNIONSTORE d h
            SMOVE h d m
            ZUNIONSTORE d 1 h
            SORT h
            SETBIT h 0 1
            GET
            SET k
            HSET
            HSET k
            HSET k f
            HSET k f v g
            SADD k
            ZADD k
            ZADD k 1
            ZADD k 1 m 2
            SMOVE a b
            SMOVE a b c d
            HDEL k
            RENAME a
            RENAME a b c
            COPY a
            MOVE a
            DEL
            MULTI a
            EXEC
            DISCARD
            DISCARD a
            DBSIZE a
            RANDOMKEY a
            EXPIRE k
            GEOADD g 1
            SORT
            RESTORE a
            SUBSCRIBE
            OBJECT
            XADD x
            DEBUG
            CONFIG
            FLUSHDB bogus
            SINTERSTORE
            SINTERSTORE d
            ZRANGESTORE d
            LMOVE a b LEFT
            RPOPLPUSH a
            SETEX k
            MSET a
            MSET a 1 b
            BITOP NOT
            BITOP XOR d
        """,
    }.items()
}
