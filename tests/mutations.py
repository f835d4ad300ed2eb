"""Deliberate breaks of the proxy, each with the test that has to notice it."""

from __future__ import annotations

import atexit
import compileall
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.servers import ROOT


@dataclass(frozen=True)
class Mutation:
    """One break.

    Attributes:
        file: under `proxy/`.
        text: what stands there, exactly once.
        instead: what is put in its place.
        caught_by: which of the checks in `tests/test_mutations.py` notices it.
    """

    file: str
    text: str
    instead: str
    caught_by: str

    @property
    def name(self) -> str:
        """A short name for the report."""
        return f"{Path(self.file).name}: {' '.join(self.text.split())[:60]}"


@cache
def _original() -> tempfile.TemporaryDirectory[str]:
    """A copy of the package and of what Python compiles of it, on the disk of the tests' folders."""
    folder = tempfile.TemporaryDirectory(prefix="expiremember-test-")
    # A file with a number behind its ending is one that another process is about to put in its place.
    shutil.copytree(ROOT / "proxy", Path(folder.name, "proxy"), ignore=shutil.ignore_patterns("*.pyc.*"))
    atexit.register(folder.cleanup)
    compileall.compile_dir(folder.name, quiet=1)
    return folder


def broken_copy(folder: Path, mutation: Mutation | None, *, hasty: bool = False) -> None:
    """Put a copy of the package into a folder, by links, and break it.

    `hasty`: whether its background passes rest for one second only.

    Raises:
        AssertionError: the text does not stand in the file exactly once.
    """
    shutil.copytree(Path(_original().name, "proxy"), folder / "proxy", copy_function=os.link)
    for file, pause in (("expiry/healing.py", "5.0"), ("expiry/leftovers.py", "10.0")) if hasty else ():
        _replace(folder, file, f"BETWEEN_ROUNDS: Final = {pause}", "BETWEEN_ROUNDS: Final = 1.0")
    if mutation is not None:
        _replace(folder, mutation.file, mutation.text, mutation.instead)


def _replace(folder: Path, file: str, text: str, instead: str) -> None:
    path = folder / "proxy" / file
    whole = path.read_text("utf-8")
    assert whole.count(text) == 1, f"{text!r} is {whole.count(text)} times in {path.name}"
    path.unlink()  # or all copies would be broken
    path.write_text(whole.replace(text, instead), "utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


_LUA = "scripts/lua/"

MUTATIONS = [
    # Covered prefixes.
    Mutation("session/inquiry.py", "*coverage.among(watched.keys), ", "", "watched until EXEC"),
    Mutation("session/changes.py", "standing.watched.add(request.arguments[1:])", "pass", "watched"),
    Mutation("session/fronts.py", "            self._before_watched(now)\n", "", "watched while blind"),
    Mutation("session/inquiry.py", "*coverage.among(transaction.names - own)", "", "EXEC when due"),
    Mutation("coverage/coverage.py", "owner is not by and any(", "False and any(", "spoilt"),
    Mutation(
        "server.py",
        "await self._proxies.announce(question.covers)",
        "self._coverage.confirm(question.covers)",
        "announced",
    ),
    Mutation(
        "server.py",
        "await self._engine.list_covered(databases, dict.fromkeys((*question.covers, *self._coverage.entries)))",
        "pass",
        "listed",
    ),
    Mutation("expiry/tracker.py", "            self._coverage.add(entries)\n", "            pass\n", "listed"),
    Mutation("server.py", "await self._underway.until_run(question.behind)", "pass", "long pipeline"),
    Mutation(
        "coverage/coverage.py",
        "[key for key in keys if not (key.startswith(prefixes) or key in whole)]",
        "[]",
        "pipeline",
    ),
    Mutation(
        "coverage/coverage.py",
        "[key for key in keys if not (key.startswith(prefixes) or key in whole)]",
        "[]",
        "announced",
    ),
    Mutation(
        "coverage/coverage.py",
        "self._add(entries, by)",
        "self._add(entries, None)",
        "not spoilt while it waits",
    ),
    Mutation("coverage/coverage.py", "        if self.blind:\n            return list(found)\n", "", "unheard of"),
    Mutation("coverage/coverage.py", "self.blind or key.startswith", "key.startswith", "unheard of"),
    Mutation(
        "coverage/coverage.py",
        "        if self.blind:\n            return True\n        prefixes",
        "        prefixes",
        "unheard of",
    ),
    Mutation("coverage/clearance.py", "min(earliest, set_here)", "earliest", "just looked at"),
    Mutation("coverage/clearance.py", "min(earliest, set_here)", "set_here", "just looked at"),
    Mutation(
        "expiry/engine.py", "note([None], since, earliest)", "note([None], since, math.inf)", "just looked everywhere"
    ),
    Mutation(
        "session/inquiry.py",
        "holds(None, now, self._alarm.set_lately)",
        "holds(None, now, math.inf)",
        "just looked everywhere",
    ),
    Mutation("server.py", "        if not self._told:\n", "        if True:\n", "told once a turn"),
    Mutation("server.py", "self.ground.streams.cut_all(entries)", "pass", "an upload elsewhere"),
    Mutation("server.py", "self._coverage.on_announced = self.ground.rewriter.marks.alarm.ring", "pass", "a survivor"),
    Mutation("server.py", "self._proxies.repeat(list(self._coverage.entries))", "pass", "an idle survivor"),
    Mutation("session/joinable.py", " or self._coverage.unconfirmed(names)", "", "a run behind a long pipeline"),
    # Reads of covered keys.
    Mutation(
        "wire/guard.py",
        "now >= self.earliest or (waits and self.earliest < math.inf)",
        "False",
        "reads behind a busy server",
    ),
    Mutation(
        "wire/guard.py", "        if now >= earliest:\n            return False\n", "", "reads behind a busy server"
    ),
    Mutation(
        "wire/guard.py", "return math.inf if first == ", "return math.inf if first or first == ", "a nearer deadline"
    ),
    Mutation("relay/batch_guard.py", "            self._answered(earliest)\n", "", "a nearer one, shared"),
    Mutation("session/reads.py", "one.earliest = earliest if", "one.earliest = math.inf if", "many due while blind"),
    Mutation(
        "session/reads.py",
        'encode([b"ZMSCORE", names.index, *keys])',
        'encode([b"ZMSCORE", names.index, *sorted(keys)[-1:]])',
        "unions when due",
    ),
    Mutation(
        "relay/batch_guard.py",
        "begun, late = True, self._now() >= self._earliest and may_be_late(piece)",
        "begun = True",
        "shared reads when due",
    ),
    Mutation("relay/batch_guard.py", "        if port not in self._guarded:", "        if True:", "shared, due"),
    # What is due goes in front of everything else on covered keys.
    Mutation("session/fronts.py", "few = alone.have_few(keys, now, asked=asked)", "return None", "scripts when due"),
    Mutation(
        "session/fronts.py", "keys = () if command is None else", "keys = () if True else", "scripts in a pipeline"
    ),
    Mutation(_LUA + "shared/settle.lua", "  passed(kind, key, shadow, index, due)\n", "", "pops when due"),
    Mutation(_LUA + "shared/alive.lua", "return size > 0", "return true", "lifetimes when due"),
    Mutation(_LUA + "front.lua", "if not there or there == 0 and kind ~= 'list' then", "if false then", "BLMOVE"),
    Mutation(_LUA + "front.lua", "if removes[kind] then gone =", "if false then gone =", "scripts when due"),
    Mutation(
        _LUA + "batch.lua",
        "then earliest = settle_key(number) end\n  if earliest then\n",
        "then end\n  if earliest then\n",
        "together, due",
    ),
    Mutation(
        "session/announcing.py",
        "streams.of_others(self._owner)",
        "streams.of_others(self._owner)[:0]",
        "long pipeline, looked at",
    ),
    Mutation("session/announcing.py", "if not keys or self._standing.may_expire(keys) else []", "", "few spoil"),
    Mutation(
        "session/judge.py",
        "self._ground.coverage.shared or bool(self._announcing.expected)",
        "False",
        "the first of all in MULTI",
    ),
    # The hot path, and the beginnings of what goes another way.
    Mutation("session/plain.py", "elif coverage.search(chunk):", "elif False:", "SPOP"),
    Mutation(
        "session/plain.py",
        "        if coverage.search(chunk):\n            if kind",
        "        if False:\n            if kind",
        "shared, due",
    ),
    Mutation(
        "session/plain.py", "used <= FREE or not self._coverage.touches([lines.split()])", "True", "inline requests"
    ),
    Mutation("session/intake.py", "        if coverage.search(data):\n            return 0\n", "", "front of a chunk"),
    # The table of commands.
    Mutation("commands/table.py", 'Effect.ADD, "HSET HMSET"', 'Effect.READ, "HSET HMSET"', "script"),
    Mutation("commands/table.py", 'Effect.ADD, "SADD LPUSH', 'Effect.READ, "SADD LPUSH', "SPOP"),
    Mutation("commands/table.py", '"SMOVE", _at(1, 2)', '"SMOVE", _at(2, 1)', "SPOP"),
    Mutation("commands/table.py", 'Effect.COUNT, "HINCRBY"', 'Effect.READ, "HINCRBY"', "script"),
    Mutation("commands/table.py", 'Effect.SCRIPT, "EVAL', 'Effect.READ, "EVAL', "SPOP"),
    Mutation("commands/table.py", 'Effect.ARRIVE, "BLMOVE', 'Effect.READ, "BLMOVE', "BLMOVE"),
    Mutation("commands/table.py", '_stored(b"STORE", first=2)', '_stored(b"STORED", first=2)', "script"),
    Mutation("commands/table.py", '"HDEL SREM ZREM"', '"HDEL ZREM"', "nothing left behind"),
    Mutation("commands/table.py", '"DEL UNLINK"', '"UNLINK"', "nothing left behind"),
    Mutation("commands/table.py", "always=True, everywhere=lambda _: True", "always=True", "keyspace when due"),
    Mutation("commands/members.py", "range(first + step - 1, size, step)", "range(first, size, step)", "script"),
    Mutation("commands/described.py", "else self._unplaced", "else None", "a renamed command"),
    Mutation("commands/table.py", "Effect.IMPORT,", "Effect.READ,", "HIMPORT"),
    Mutation(_LUA + "bracket.lua", "== 0 then", "== 1 then", "HIMPORT"),
    Mutation("session/dispatch.py", "*pushes, queued[1]]", "*pushes, run]", "HIMPORT without MULTI"),
    Mutation("commands/members.py", "first = position + 2", "first = position + 3", "HGETDEL"),
    Mutation("commands/members.py", "first = position + 2", "first = position + 3", "HSETEX"),
    Mutation("commands/members.py", "first = position + 2", "first = position + 1", "HSETEX"),
    Mutation("commands/table.py", 'Effect.VANISH, "MSETEX"', 'Effect.REMOVE_UNNAMED, "MSETEX"', "MSETEX"),
    # The scripts.
    Mutation(_LUA + "shared/renew.lua", "      call('zrem', shadow, member)\n", "\n", "script"),
    Mutation(_LUA + "shared/renew.lua", "if void then refresh(key, shadow, index) end", "", "index"),
    Mutation(_LUA + "shared/clear.lua", "lapse(kind, key,", "lapse('set', key,", "reads when due"),
    Mutation(_LUA + "shared/quiet.lua", "= discard(kind, key, members)", "= 0", "keyspace when due"),
    Mutation(_LUA + "shared/lapse.lua", "or first ~= last then", "then", "own deadlines"),
    Mutation(_LUA + "shared/lapse.lua", "then whole = false end", "then whole = true end", "void and events"),
    Mutation(
        _LUA + "shared/lapse.lua",
        "length = rule.length, value = rule.value}",
        "length = rule.length, value = false}",
        "events",
    ),
    Mutation(_LUA + "shared/lapse.lua", "if place == last or place % 100 == 0 then", "if false then", "trimmed"),
    Mutation(
        _LUA + "shared/lapse.lua",
        "local function elsewhere() rules, few, paid = nil, {}, false end",
        "local function elsewhere() end",
        "rules of databases",
    ),
    Mutation(_LUA + "shared/lapse.lua", "if type(reply) == 'table' then", "if false then", "no stream"),
    Mutation(_LUA + "shared/lapse.lua", "#key .. ':' .. key", "key", "messages"),
    Mutation(_LUA + "shared/lapse.lua", "and not seen[rule.stream]", "", "several rules"),
    Mutation(_LUA + "shared/lapse.lua", "and rule.list ~= key and", "and", "own list"),
    Mutation(_LUA + "shared/lapse.lua", "and not seen[rule.shadow]", "", "rules for a list"),
    Mutation(
        _LUA + "shared/lapse.lua",
        "target.value and (kind == 'hash' or kind == 'zset') and values or gone",
        "gone",
        "pushed",
    ),
    Mutation(_LUA + "shared/lapse.lua", "tally[7], tally[5] = tally[7] + #words, reply.err", "failed()", "no list"),
    Mutation(_LUA + "shared/lapse.lua", "if deadline and not there then", "if false then", "a new life in a list"),
    Mutation(_LUA + "shared/lapse.lua", "{word}, strict)\n      there = false", "{}, strict)", "a new life in a list"),
    Mutation(_LUA + "shared/lapse.lua", "if changed then refresh(", "if false then refresh(", "a new life in a list"),
    Mutation(_LUA + "shared/lapse.lua", "need('rpush', one.list, '')", "", "the right to push"),
    Mutation(_LUA + "shared/quiet.lua", "if asked then", "if false then", "the first rule"),
    Mutation(_LUA + "traces.lua", "KEYS[1], KEYS[2])", "KEYS[1])", "rules do not show"),
    Mutation(
        _LUA + "void.lua", "voided = voided + call('zrem', shadow, member)", "voided = 0", "lives within a transaction"
    ),
    Mutation(_LUA + "shared/run.lua", "pcall(behind, reply)", "behind(reply)", "told what has run"),
    Mutation(_LUA + "batch.lua", "if replies[number] == nil then", "if true then", "told what has run"),
    Mutation("session/joinable.py", r"(?:[1-9][0-9]{0,14}\r)+", r"(?:[1-9][0-9 ]{0,14}\r)+", "odd requests"),
    Mutation("session/script_calls.py", " or names.is_moving(first)", "", "requests in a row"),
    Mutation(_LUA + "remove.lua", "return run(2, 2, ", "return run(2, nil, ", "HGETDEL of nothing"),
    Mutation(_LUA + "rename.lua", "call(ARGV[1], KEYS[2], KEYS[4])", "redis.call('unlink', KEYS[2])", "RENAME"),
    Mutation(_LUA + "copy.lua", "call(unpack(copy))", "0", "COPY"),
    Mutation(_LUA + "move.lua", "redis.pcall('zrem', index, key)", "", "index"),
    Mutation(_LUA + "move_member.lua", "call('zrem', right, member)", "", "SPOP"),
    Mutation(_LUA + "replace.lua", "drop(KEYS[1], KEYS[2], KEYS[3])", "", "SPOP"),
    Mutation(_LUA + "vanish.lua", "drop(KEYS[position], KEYS[position + 1], KEYS[1])", "", "nothing left behind"),
    Mutation(_LUA + "persist.lua", "call('zrem', shadow, member)", "", "TTL"),
    Mutation(_LUA + "ttl.lua", "(math.max(deadline - moment, 1) + unit / 2)", "(deadline - moment)", "TTL"),
    Mutation(_LUA + "expire.lua", "deadline <= present)", "deadline < present)", "conditions"),
    Mutation(_LUA + "expire.lua", "== 'XX' and not present", "== 'XX' and present", "condition XX"),
    Mutation(_LUA + "shared/discard.lua", "call('lrem', key, 0, member)", "redis.call('lrem', key, 1, member)", "list"),
    Mutation(_LUA + "shared/void.lua", "redis.pcall('zadd', shadow, -deadline, member)", "1", "void by name"),
    Mutation(_LUA + "dbsize.lua", " - (type(count) == 'number' and count or 0)", "", "reserved names"),
    Mutation(_LUA + "scan.lua", "if key:sub(1, #prefix) ~= prefix then", "if true then", "reserved names"),
    Mutation(_LUA + "keys.lua", "if key:sub(1, #prefix) ~= prefix then", "if true then", "reserved names"),
    Mutation(_LUA + "shared/comb.lua", "not elements and void(kind, key, shadow, member)", "false", "leftovers"),
    # The proxy.
    Mutation("session/plain.py", "or self._is_reserved(lines):", ":", "inline requests"),
    Mutation("session/ground.py", "frequent_requests(prefix[:1])", "frequent_requests(b'')", "refusals in a pipeline"),
    Mutation("session/rewrite.py", "if name.startswith(prefix):", "if False:", "refusals"),
    Mutation(_LUA + "shared/comb.lua", "whole and math.huge or 20 * count", "math.huge", "pass over a long list"),
    Mutation(
        _LUA + "shared/comb.lua",
        "void('list', key, shadow, member, complete)",
        "void('list', key, shadow, member, true)",
        "list that changes under a pass",
    ),
    Mutation(_LUA + "shared/settle.lua", "local room = 20000", "local room = 2000", "many due"),
    Mutation(
        _LUA + "shared/overdue.lua",
        " and not call('zrangebyscore', shadow, '(0', moment, 'limit', 1999, 1)[1]",
        "",
        "more due than go",
    ),
    Mutation(_LUA + "move_member.lua", "if not few then", "if false then", "more due than go, moved"),
    Mutation(
        _LUA + "move_member.lua", "and ARGV[1] == 'end' and tries < 100 do", "and false do", "behind one that is due"
    ),
    Mutation(_LUA + "persist.lua", " and alive(kind, key, shadow, moment - grace)", "", "void, and gone"),
    Mutation(
        _LUA + "batch.lua",
        "if not earliest or earliest <= moment and not alive(kind_of(number), key, shadow, moment) then",
        "if not earliest then",
        "void, and gone, together",
    ),
    Mutation(_LUA + "shared/comb.lua", "% 63 < 4", "% 63 < 64", "void passed"),
    Mutation(_LUA + "ttl.lua", "math.floor(-deadline)", "math.floor(-deadline - 1000)", "void for long"),
    Mutation(_LUA + "ttl.lua", "moment - grace", "moment", "TTL in a transaction"),
    Mutation(
        _LUA + "ttl.lua",
        "deadline, passed = math.floor(-deadline), moment",
        "deadline = math.floor(-deadline)",
        "void in a transaction",
    ),
    Mutation(_LUA + "persist_members.lua", "moment - grace", "moment", "HPERSIST in a transaction"),
    Mutation(_LUA + "get_fields.lua", "moment - grace", "moment", "HGETEX in a transaction"),
    Mutation(_LUA + "scan_members.lua", "now() - grace", "now()", "a scan in a transaction"),
    Mutation("session/together.py", "if advances and is_cleared(key, transaction):", "if False:", "a run of SREM"),
    Mutation(
        _LUA + "shared/settle.lua",
        "first[1] and not within(shadow, tonumber(first[2]), moment) then",
        "first[1] then",
        "DEL in a transaction",
    ),
    Mutation(
        _LUA + "shared/settle.lua",
        "first[1] and not within(shadow, tonumber(first[2]), moment) then",
        "false then",
        "SMOVE of what was left",
    ),
    Mutation(
        _LUA + "shared/settle.lua",
        "local function settle(key, shadow, index)\n",
        "settle = function(key, shadow, index)\n",
        "much that was left",
    ),
    Mutation("session/transaction.py", "self._clearings < CLEARED_AT_MOST", "True", "a target without room"),
    Mutation("session/transaction.py", "self._keep(keys[1:], self._cleared)", "pass", "RENAME in it, and a read"),
    Mutation("session/together.py", " and not (form.reads and advances)", "", "a run of reads first"),
    Mutation(_LUA + "persist.lua", "math.floor(-deadline) > moment and not has", "not has", "one void that has passed"),
    Mutation(_LUA + "batch.lua", "math.floor(-deadline) > moment and not has", "not has", "some void that have passed"),
    Mutation(
        "session/outgoing.py", "self.blocker.ahead + sum(map(len, self._parts[:place]))", "0", "a large request ahead"
    ),
    Mutation("relay/progress.py", "self._last if alone else sent", "sent", "a large one alone"),
    Mutation("relay/progress.py", "sent + session.blocker.ahead", "sent", "a large request ahead"),
    Mutation(
        "relay/progress.py", "sent + session.blocker.ahead", "sent and sent + session.blocker.ahead", "the first bytes"
    ),
    Mutation(
        "relay/conversation.py",
        "            finally:\n                self._progress",
        "            except KeyError:\n                self._progress",
        "before a wrong one",
    ),
    Mutation(
        "relay/progress.py",
        "self._first[1] if received == self._first[0] else",
        "self._first[1] if True else",
        "behind an earlier one",
    ),
    Mutation("tls.py", "        give_back(whole)\n", "", "buffers of TLS"),
    Mutation("embedded/guard.py", "prctl(PR_SET_PDEATHSIG, signal.SIGTERM)", "pass", "guard and owner killed"),
    Mutation("embedded/guard.py", "if os.getppid() != parent:", "if False:", "a guard killed early"),
    Mutation(_LUA + "ttl_members.lua", "moment - grace", "moment", "HTTL in a transaction"),
    Mutation(_LUA + "weed.lua", "behind + #page - #due", "behind + #page", "many elements"),
    Mutation(_LUA + "weed.lua", " or marked() ~= left", "", "changing list"),
    Mutation(
        _LUA + "weed.lua",
        "members = members + lapse('list', key, shadow, index, due, false)",
        "members = 0",
        "list that never rests",
    ),
    Mutation("session/standing.py", "(not self.resp3 and self.counted)", "self.counted", "subscriber"),
    Mutation("session/standing.py", "if one[0] == kind", "if one[0] != kind", "no subscriber"),
    Mutation(_LUA + "weed.lua", "deadline > 0 and deadline <= due_until", "deadline > 0", "many elements"),
    Mutation(_LUA + "shared/clear.lua", "room = cut and 0 or", "room =", "few elements"),
    Mutation(_LUA + "shared/clear.lua", "#due >= 100", "#due >= 1000", "many elements"),
    Mutation("session/multi.py", "if unseen or", "if", "watched while blind"),
    Mutation("expiry/sweeper.py", "await self._sweep(look.database, look.due)", "pass", "DEL"),
    # Refusals are the server's own.
    Mutation("scripts/calls.py", 'return b"#!lua\\n" if terms.takes_memory else', "return", "refusals without memory"),
    Mutation("scripts/calls.py", 'else b"#!lua flags=no-writes\\n"', 'else b""', "paused writes"),
    Mutation("scripts/calls.py", "text = _head(terms) + script(", "text = script(", "no half"),
    # Shortened scripts.
    Mutation("scripts/shortening.py", 'begins and self.tokens[place + 1] == "="', "False", "TTL"),
    Mutation("scripts/shortening.py", 'if before in (".", ":"):', 'if before == ":":', "TTL"),
    Mutation("scripts/shortening.py", "if all(begin <= place < end for place in self._left(name)):", "if True:", "TTL"),
    Mutation("scripts/shortening.py", '"\\n" if fresh else " "', '""', "TTL"),
    Mutation("session/rights.py", "self.confinement = frame", "pass", "a subscriber"),
    Mutation("session/outgoing.py", "self._asides.precede()", "pass", "lives within a transaction"),
    Mutation(
        "session/dispatch.py",
        "out.put_aside(self._ground.rewriter.beside.void(key, members))",
        "pass",
        "lives within a transaction",
    ),
    Mutation("wire/asides.py", "if line == _QUEUED:", "if False:", "lives within a transaction"),
    # The words of other servers.
    Mutation(_LUA + "expire_members.lua", "order == 'GT' and (not present", "false and (not present", "dialects"),
    Mutation(_LUA + "expire_members.lua", "condition == 'NX' and present", "false", "dialects"),
    Mutation(
        _LUA + "expire_members.lua", "elseif least <= tonumber(before) then", "elseif false then", "dialects, index"
    ),
    Mutation(_LUA + "expire_members.lua", "and plain then least = 0", "and false then least = 0", "dialects, index"),
    Mutation(_LUA + "expire_members.lua", "stored and math.abs(stored) or least", "least", "dialects, index"),
    Mutation(_LUA + "expire_members.lua", "math.min(least, math.abs(stored))", "least", "dialects, index"),
    Mutation(_LUA + "expire_members.lua", "states[member], replies", "states[''], replies", "dialects"),
    Mutation(_LUA + "expire_members.lua", "if due[1] then passed(", "if false then passed(", "only due members"),
    Mutation(_LUA + "expire_members.lua", "nothing_due = settle(key", "nothing_due = true or (key", "only due members"),
    Mutation(_LUA + "ttl_members.lua", "deadline = math.ceil(deadline)", "", "dialects"),
    Mutation(_LUA + "persist_members.lua", "call('zrem', shadow, unpack(drops))", "", "dialects"),
    Mutation(_LUA + "scan_members.lua", "if deadline > passed then", "if false then", "dialects"),
    Mutation(_LUA + "set_members.lua", "deadline and deadline - 0.5", "deadline", "dialects"),
    Mutation(_LUA + "set_members.lua", "term ~= 'keep'", "true", "dialects"),
    Mutation(_LUA + "set_members.lua", "~= (condition == 'XX')", "== 1", "dialects"),
    Mutation(_LUA + "get_fields.lua", "discard(kind, key, found)", "", "dialects"),
    Mutation(_LUA + "shared/hand_over.lua", "'NX', ", "", "an upgrade"),
    Mutation(_LUA + "shared/hand_over.lua", "deadline % 1 == 0.5", "true", "an upgrade"),
    Mutation(_LUA + "shared/hand_over.lua", "deadline + 0.5", "deadline", "an upgrade"),
    Mutation(_LUA + "expire_members.lua", "and 0.25 or 0.5", "and 0.5 or 0.5", "an upgrade"),
    Mutation(_LUA + "own_words.lua", "hand_over(key, shadow, index, {unpack(ARGV, 4)}, (now()))", "", "an upgrade"),
    Mutation(_LUA + "void_pages.lua", "ARGV[4] == 'own' and hand_over", "nil", "an upgrade"),
    Mutation("session/rewrite.py", 'script = "own_words"', "pass", "an upgrade"),
    Mutation(_LUA + "get_fields.lua", "call('zadd', shadow, unpack(scores))", "", "dialects"),
    Mutation(_LUA + "shared/renew.lua", "tonumber(deadline) % 1 ~= 0", "false", "dialects"),
    Mutation(_LUA + "batch.lua", "if form.over and deadline % 1 ~= 0 then", "if false then", "dialects"),
    Mutation("commands/dialects.py", "count *= width", "count *= 2", "dialects"),
    Mutation(
        "session/announcing.py",
        "if keys and not self._ground.rewriter.own.may_set(command, request.arguments):",
        "if False:",
        "dialects without a time",
    ),
    Mutation("session/own_commands.py", "if asked.term is not Term.TIME:", "if False:", "dialects without a time"),
    Mutation("session/announcing.py", "or not lacks(name)", "", "the server's own words"),
    Mutation("session/announcing.py", "if name in _NEED_NOT:", "if False:", "dialects without a time"),
    Mutation(
        "commands/described.py", "if described and _house(name) not in kept", "if described", "the server's own words"
    ),
    Mutation("wire/asides.py", "self._amended[self._queued] = amend", "pass", "descriptions"),
    Mutation("session/outgoing.py", "self._asides.amend(amend)", "pass", "descriptions"),
    Mutation("session/describe.py", "next(coming, found[2])", "found[2]", "descriptions"),
    Mutation("commands/own.py", "return Own(-4, _SETS", "return Own(-3, _SETS", "descriptions"),
    Mutation("wire/asides.py", "self._queued - len(self._places)", "self._queued", "lives within a transaction"),
    Mutation(
        "session/beside.py",
        "if terms.declared or not terms.writes",
        "if True or not terms.writes",
        "no half on the oldest",
    ),
    Mutation(
        "wire/asides.py", 'self._refusal = line.removesuffix(b"\\r\\n") + b"\\r\\n"', "pass", "refusals on the oldest"
    ),
    Mutation("scripts/calls.py", "return _guard() if terms.takes_memory else", "return", "removal on the oldest"),
    Mutation("session/transaction.py", "return self._writes > 1", "return False", "lives within a transaction"),
    # Many requests as one call.
    Mutation("wire/asides.py", "self._pending = 1 + call.requests", "self._pending = 1", "queued together"),
    Mutation("wire/asides.py", "self._opened = call", "pass", "queued together"),
    Mutation("wire/asides.py", "if size > call.requests:", "if False:", "queued together"),
    Mutation("wire/asides.py", "(refusal if refused else line) * call.requests", "line", "queued, refused"),
    Mutation("wire/asides.py", "return line * call.requests", "return line", "queued, refused"),
    Mutation("session/together.py", "guard=guard)", "guard=None)", "queued, refused on the oldest"),
    Mutation("wire/asides.py", 'if call is not None and mark not in b"+-":', "if False:", "queued, MULTI refused"),
    Mutation(
        _LUA + "batch.lua",
        "deadline < least then least = deadline end\n      new[last + 1], new[last + 2] = in_digits(deadline), members",
        "deadline > least then least = deadline end\n      new[last + 1], new[last + 2] = in_digits(deadline), members",
        "together, index",
    ),
    Mutation(_LUA + "batch.lua", "ARGV[late + (place - 1) * width] * unit", "unit", "together"),
    Mutation(_LUA + "batch.lua", "ARGV[late] * unit - early", "ARGV[late] * unit", "dialect pairs"),
    Mutation(_LUA + "batch.lua", "* width] * unit - early", "* width] * unit", "dialect pairs"),
    Mutation(_LUA + "batch.lua", "yes, no, early = {1}, {-2}", "yes, no, early = {1}, {0}", "dialect pairs"),
    Mutation(
        _LUA + "batch.lua",
        "other = not fits(kind, form.wanted) and misfit",
        "other = false and misfit",
        "dialect pairs",
    ),
    Mutation("session/operations.py", "if form.noun and (request", "if False and (request", "dialect pairs"),
    Mutation(_LUA + "batch.lua", "ARGV[position + form.takes] - 0.5", "ARGV[position + form.takes]", "writes"),
    Mutation(
        _LUA + "batch.lua",
        "deadline < least then least = deadline end\n      new[last + 1], new[last + 2] = deadline, ARGV",
        "deadline > least then least = deadline end\n      new[last + 1], new[last + 2] = deadline, ARGV",
        "together, index",
    ),
    Mutation(_LUA + "batch.lua", "if earliest and misfits(", "if false and misfits(", "writes"),
    Mutation(
        _LUA + "batch.lua",
        "if failed(replies[size + 1]) and misfits(",
        "if false and misfits(",
        "refused mixture on the oldest",
    ),
    Mutation(_LUA + "batch.lua", "form.step == 1 then return", "true then return", "writes"),
    Mutation(_LUA + "batch.lua", "form.step == 1 then return", "false then return", "writes"),
    Mutation(_LUA + "batch.lua", "(form.takes or width)", "width", "writes"),
    Mutation(_LUA + "batch.lua", "if not next(sure) then", "if false then", "forbidden writes"),
    Mutation(_LUA + "batch.lua", "need('zadd', shadow, 0, member)", "", "forbidden writes"),
    Mutation(
        _LUA + "batch.lua", "if sure[number] then return end", "if next(sure) then return end", "forbidden writes"
    ),
    Mutation(
        _LUA + "batch.lua",
        "if not failed(replies[size + (position - first) / form.width + 1]) then",
        "if true then",
        "forbidden writes",
    ),
    Mutation(
        _LUA + "batch.lua",
        "then earliest = settle_key(number) end\n  if earliest and misfits",
        "then end\n  if earliest and misfits",
        "writes, another type is due",
    ),
    Mutation("session/operations.py", "unit = RELATIVE_UNITS.get(request[at - 1].upper(), 0)", "unit = 1000", "writes"),
    Mutation("session/operations.py", "if not unit or not _delay", "if not _delay", "writes"),
    Mutation("session/operations.py", "MOST_SECONDS * 1000 if in_dragonfly else LATEST // 2", "LATEST // 2", "writes"),
    Mutation("session/operations.py", "if word.noun else MOST_SECONDS * word.unit", "", "dialect pairs"),
    Mutation("session/operations.py", "1 if in_dragonfly else 2)", "1)", "writes"),
    Mutation("session/joinable.py", "2 * MOST_ARGUMENTS + 1", "2 * SIZES[-1] + 1", "joint"),
    Mutation(_LUA + "batch.lua", "left = -2", "left = -1", "odd requests"),
    Mutation(
        _LUA + "batch.lua", "dropped[member], stale[number] = true, true", "dropped[member] = true", "together, index"
    ),
    Mutation(_LUA + "batch.lua", "if not each[place] then", "if false then", "together, added again"),
    Mutation(_LUA + "batch.lua", "if kind == 'none' then return drop_key(number) end", "", "emptied"),
    Mutation(_LUA + "batch.lua", "'-' .. deadlines", "'' .. deadlines", "together"),
    Mutation(_LUA + "batch.lua", "first = first + count * form.width", "", "together"),
    Mutation(_LUA + "batch.lua", "if new[1] then redis.pcall('zadd', index, unpack(new)) end", "", "together, index"),
    Mutation("wire/elements.py", "line *= self._count", 'line = b"-ERR\\r\\n" * self._count', "together, refused"),
    Mutation("session/together.py", "standing.transaction is not None", "False", "together, queued"),
    Mutation("session/together.py", "if form.does not in alike:", "if not alike:", "together, in few calls"),
    Mutation("session/together.py", "not coverage.is_confirmed(key)", "False", "together, first"),
    Mutation(_LUA + "batch.lua", "only ~= added[number] and", "not added[number] and", "together, mixed"),
    Mutation(
        _LUA + "batch.lua",
        "if 2 * count_new < size and not (size == 2 and earliest and least < earliest)",
        "if false",
        "together, index",
    ),
    # Those of many clients.
    Mutation("relay/joint.py", "for_good or said.startswith(_NO_SUCH_SCRIPT)", "for_good", "joint, flushed"),
    Mutation("relay/joint.py", "_NOT_BY_DIGEST(said) is not None", "False", "joint, no digests"),
    Mutation("relay/joint.py", "[^\\r]*'evalsha(?:_ro)?'", "", "joint, digests again"),
    Mutation("relay/joint.py", 'elif said[:1] != b"-":', "else:", "joint, refused texts"),
    Mutation("relay/joint.py", "(?:_ro)?", "", "joint, no digests"),
    Mutation("scripts/calls.py", 'else b"EVALSHA_RO"', 'else b"EVALSHA"', "joint, paused"),
    Mutation(
        "relay/joint.py",
        "ports, self._left = self._left, []\n        for port, reply",
        "ports, self._left = self._left[::-1], []\n        for port, reply",
        "joint, errors",
    ),
    Mutation("relay/joint.py", "return self._call.encode(self._by_digest)", "return self._call.encode(False)", "joint"),
    Mutation(
        "relay/joint.py", "if len(parts) == 1 and isinstance(first", "if False and isinstance(first", "joint, alone"
    ),
    Mutation("relay/joint.py", "self._is_alone or refused", "refused", "joint, alone"),
    Mutation("session/operations.py", 'alone += b" over"', "pass", "joint, alone"),
    Mutation("session/script_calls.py", "Loadable((form.script,", "Loadable(('',", "joint, alone"),
    Mutation("relay/lanes.py", "COVERED_WORTH: Final = 4", "COVERED_WORTH: Final = 1", "the only one, covered"),
    Mutation("session/plain.py", 'frozenset((b"TTL", b"PTTL"))', "frozenset()", "joint, paused"),
    Mutation("session/joinable.py", "or self._names.prefix in chunk", "", "joint, odd ones"),
    Mutation("session/joinable.py", " or operation.key.startswith(self._names.prefix)", "", "joint, odd ones"),
    Mutation("scripts/lua/batch.lua", "form.counts and exact(", "exact(", "far times"),
    Mutation(
        "session/together.py", "form.alike if form.reads or", "form.alike if not form.terms.writes or", "without TTL"
    ),
    Mutation("session/operations.py", "(self._server.has(name) and", "(True and", "without COMMAND"),
    Mutation("session/joinable.py", "if is_mixed or not", "if not", "joint, odd ones"),
    Mutation("session/joinable.py", "if form.scored and not _NUMBERS", "if False and not _NUMBERS", "joint, odd ones"),
    Mutation("relay/lanes.py", "        return refused\n", "        return []\n", "joint, odd ones"),
    Mutation("relay/lanes.py", "self._joint.append(port)\n        return True", "return False", "joint"),
    # What goes on in the background, and what bounds it.
    Mutation("expiry/indexes.py", "ties = sum(1 for _, deadline in page if deadline == last)", "ties = 0", "ties"),
    Mutation("proxies/listening.py", 'raise TimeoutError("the upstream does not answer")', "pass", "dead connection"),
    Mutation("expiry/healing.py", "if changes == self._seen:", "if self._seen is not None:", "changes"),
    Mutation("expiry/leftovers.py", "if changes == self._seen:", "if self._seen is not None:", "changes"),
    Mutation("expiry/sweeper.py", "await asyncio.sleep(loop.time() - began)", "pass", "sweeps leave time"),
    Mutation("session/ground.py", "and self.rewriter.server.has(upper)", "", "names of commands"),
    Mutation("relay/conversation.py", "self._upstream.pause(ReadPause.FULL)", "pass", "late reader"),
    # Shared connections.
    Mutation("relay/greeting.py", "if not self.refusal and who(told) != self._identity:", "if False:", "another user"),
    Mutation("session/identity.py", 'said.get(b"flags") not in ORDINARY or ', "", "a state of its own"),
    Mutation("relay/sharing.py", "if port.busy or not takers", "if not takers", "order of what is shared"),
    Mutation(
        "relay/sharing.py", "_refuse, writes.take, reads.take", "_refuse, writes.take, writes.take", "shared reads"
    ),
    Mutation("relay/sharing.py", "self._upstream.pause(ReadPause.MIDWAY)", "pass", "pushes that wait"),
    Mutation(
        "relay/sharing.py",
        "if self._port.busy:\n            self._late",
        "if False:\n            self._late",
        "a push within a reply",
    ),
    Mutation(
        "session/session.py", 'self._out.expect(b"", fails=joined)', 'self._out.expect(b"")', "owed in front of CACHING"
    ),
    Mutation("wire/silence.py", "if reply != _DONE:", "if False:", "silence"),
    Mutation(
        "wire/silence.py", "self.wanted is not Wanted.NONE or not fits(self._last)", "not fits(self._last)", "logouts"
    ),
    Mutation("wire/silence.py", "may_be = self._subscribes and", "may_be = False and", "subscribers in silence"),
    Mutation("session/outgoing.py", "self.replace(request, ON)", "self.replace(request, request.raw)", "skips"),
    Mutation("session/hearing.py", "caching=self._caching if joined else", "caching=", "caching, then silence"),
    Mutation("relay/upstream.py", "(rest := self._replies.end())", "False", "replies in doubt at the end"),
    Mutation("session/outgoing.py", "silent=replies.echoes and not fails", "silent=False", "no errors"),
    Mutation("session/outgoing.py", "found=found, silent=self._silent", "found=found, silent=False", "no errors"),
    Mutation("wire/reply.py", "if place and self._silent:", "if False:", "busy"),
    Mutation("session/judge.py", "if self._reads.disturbs(command, request) else", "if False else", "behind reads"),
    Mutation("session/reads.py", "and not self._may_follow(requests, keys):", "and False:", "sent twice"),
    Mutation("session/reads.py", "if request[0] in SEVERAL_KEYS else request[1:2]", "", "reads wait for none"),
    Mutation("session/reads.py", "if name in _CONTENTS:", "if False:", "reads wait for none"),
    Mutation("session/reads.py", "in _EXPIRE_TIMES or name in _LIFETIMES)", "in ())", "reads wait for none"),
    Mutation("session/reads.py", "and _EXPIRE[name](request[2]):", "and False:", "reads wait for none"),
    Mutation("session/reads.py", "Concern.EXPIRY: (Concern.LIFETIME, ", "Concern.EXPIRY: (", "sent twice"),
    Mutation("session/reads.py", "raw if used.isdisjoint(_EXPIRE) else", "raw if True else", "an EXPIRE behind a read"),
    Mutation(
        "session/reads.py", "return set(scope.among({", "return set(self._ground.coverage.among({", "not covered yet"
    ),
    Mutation("session/reads.py", "        return self._again > 0\n", "        return False\n", "a reply that waits"),
    Mutation("wire/pieces.py", "and keeper.is_late():", "and False:", "a reply that waits"),
    Mutation("session/reads.py", "and self._again <= _MOST_WAITING", "", "few wait"),
    Mutation(
        "session/reads.py", "                    named[_concern(request)].update(_named(request))\n", "", "sent twice"
    ),
    Mutation("relay/conversation.py", "wants_probe and (sends or", "wants_probe and (False or", "busy"),
    Mutation("session/strangers.py", "self._out.logged_out = standing.replies.next_number", "pass", "logouts"),
    Mutation("session/strangers.py", "standing.login = Login.UNPROVED", "pass", "a new password"),
    Mutation("session/outgoing.py", "if self._standing.login is _PRESUMED:", "if False:", "a new password, told late"),
    Mutation("session/outgoing.py", "silent=self._silent, by_greeting=self._greets", "silent=True", "a new password"),
    Mutation(
        "session/session.py", "greets = self.replies.may_want_login and", "greets = False and", "a password again"
    ),
    Mutation("session/hearing.py", "elif self._standing.is_stranger and", "elif False and", "logouts"),
    Mutation("session/strangers.py", "if self.tried or", "if standing.is_stranger or", "many resets"),
    Mutation("wire/reply.py", 'len(self._doubt or b"")', "0", "replies in doubt"),
    Mutation("relay/conversation.py", "(sends or self._ending.may_probe)", "sends", "ends without ECHO"),
    Mutation("wire/replies.py", "self._unasked, mark = True", "self._unasked, mark = False", "a push to others"),
    Mutation("wire/replies.py", " or parts_at_once(data, position, pending)", "", "a long nested reply"),
    Mutation("wire/replies.py", 'rf"({_SHORT})|.+"', 'rf"({_SHORT})"', "beginnings of replies"),
    Mutation("relay/lanes.py", "self.refused = True", "pass", "room for others"),
    Mutation("session/beside.py", 'and waiting == b"WAIT":', ":", "WAITAOF"),
    Mutation("session/dispatch.py", 'if len(replies) == 2 and replies[0][:1] == b"-":', "if False:", "WAITAOF"),
    Mutation("session/dispatch.py", "self._standing.unlike = self._standing.shares = True", "pass", "WAITAOF"),
    Mutation(
        "relay/lane.py", "if self.may_resend and port.request and (place or not self._long.come):", "if False:", "lost"
    ),
    Mutation("relay/sharing.py", "if self._session.user != self._lanes.credentials.user:", "if False:", "not asked"),
    Mutation("relay/long_reply.py", "self._kept_waiting += 1", "pass", "bit by bit"),
    Mutation("relay/long_reply.py", 'piece.count(b"\\n") > self._most_lines', "False", "many parts"),
    Mutation("relay/lanes.py", "max(1, SPARSE * (self._batches - batches))", "0", "the only one"),
    Mutation("relay/lane.py", "if self.may_resend and self.is_within_a_long_reply:", "if False:", "a slow server"),
    Mutation(
        "session/dispatch.py",
        "if request.kind is Kind.HEAD:\n            self._out",
        "if False:\n            self._out",
        "owed in front of a part",
    ),
    Mutation("session/judge.py", "        standing.end = End.BROKEN\n\n", "\n", "owed in front of an error"),
    Mutation(
        "session/outgoing.py", "if standing.transaction is None and (silent or loud)", "if silent", "owed among users"
    ),
    # What strangers may do.
    Mutation("listen/listener.py", "Beneath(self._turns.join)", "Beneath()", "handshakes"),
    Mutation("listen/listener.py", "if task.cancelled():", "if False:", "who is accepted as it stops"),
    Mutation(
        "wire/proxied.py", "size = _HEAD.size + length\n", "size = 16 + max(length - 1, 0)\n", "a header at every cut"
    ),
    Mutation("listen/header.py", "asyncio.timeout(seconds)", "asyncio.timeout(None)", "a header that does not come"),
    Mutation("listen/listener.py", " and not is_among(address[0], self._balancers)", " and False", "past the balancer"),
    Mutation(
        "listen/listener.py",
        "connection.source = await take_header(client, seconds) or peer",
        "await take_header(client, seconds) or peer",
        "a client by its header",
    ),
    Mutation("relay/client.py", 'else {"client": self.source}', "else {}", "a client by its header"),
    Mutation("tls.py", "raise ConnectionResetError(_LOST)  # TLS would", "pass  # TLS would", "ends"),
    Mutation("tls.py", "self._tls.connection_lost(exc)", "pass", "ends"),
    Mutation("relay/joint.py", "len(self._left) > 1 and _FORBIDDEN(said)", "False", "joint, one forbidden"),
    Mutation("relay/joint.py", "self._send_each()", "self._give_back(b'')", "joint, one forbidden, all left"),
    Mutation("session/together.py", ' and has(b"MULTI") and has(b"EXEC")', "", "renamed MULTI"),
    Mutation("wire/elements.py", "if refused and replies.startswith(_BUSY):", "if False:", "busy, transaction"),
    Mutation("listen/binding.py", "BACKLOG: Final = 4096", "BACKLOG: Final = 1024", "a crowd at the door"),
    Mutation("session/rights.py", "frame.startswith(_NO_ANSWER)", "False", "permissions unknown"),
    Mutation("relay/client.py", "            self._salvage()\n", "            pass\n", "behind an unread reply"),
    # Strings, streams and keys as a whole among requests on members, and what takes no memory.
    Mutation(
        _LUA + "batch.lua",
        "  local earliest = earliest_of(number)\n  if earliest and earliest <= moment then settle_key(number) end\n",
        "",
        "strings, due",
    ),
    Mutation(
        _LUA + "batch.lua",
        "number], added[number] = nil, nil\n  if not earliest",
        "number] = nil\n  if not earliest",
        "together, in few calls",
    ),
    Mutation(_LUA + "batch.lua", "if code == 'OOM' and not form.free", "if false", "without memory"),
    Mutation(_LUA + "batch.lua", "if not form.reads and (code", "if (code", "together, refused mixture"),
    Mutation(
        "session/together.py",
        '                        if form.does == "q":\n                            return groups, place\n',
        "",
        "mixtures while paused",
    ),
    Mutation("session/operations.py", "return None if first.reads else (MIXED", "return (MIXED", "few while paused"),
    Mutation(
        "session/operations.py",
        "if takes and not any(form.reads for form in forms) else",
        "if takes else",
        "queued, refused",
    ),
    Mutation(_LUA + "batch.lua", "or math.abs(reply) < 2 ^ 53 then", "or true then", "counters"),
    Mutation(_LUA + "batch.lua", "if type(digits) == 'table'", "if false", "counters"),
    Mutation("wire/elements.py", "return as_counter(line)", "return line", "counters"),
    Mutation(
        "wire/elements.py", "        self._parts += self._pending - 1\n", "        self._parts -= 1\n", "counters"
    ),
    Mutation("relay/joint.py", "list(map(as_counter, replies)) if self._counts", "replies if True", "counters of many"),
    Mutation("session/script_calls.py", "is not None or form.counts:", "is not None:", "counters of many"),
    Mutation("session/together.py", "form.names_members and not form.counts and", "form.names_members and", "counters"),
    Mutation(_LUA + "batch.lua", "code == 'OOM' and not form.free", "code == 'OOM'", "without memory"),
    Mutation(_LUA + "batch.lua", "(code == 'READONLY' or", "(false and", "together, refused mixture"),
    Mutation(
        "session/operations.py", "not self._server.queues_without_memory", "False", "queued on an old one, no memory"
    ),
    Mutation("session/together.py", "free=free, counts=counts", "counts=counts", "queued, no memory"),
    Mutation("relay/joint.py", "refused=refused, free=free)", "refused=refused)", "queued by many, no memory"),
    Mutation("session/plain.py", "if is_indifferent(requests[0]) or not", "if not", "strings of many"),
    Mutation("session/plain.py", "**_other_heads(), ", "", "strings of many"),
    Mutation(
        "session/joinable.py", "_LEAST_PARTS: Final = 2 * 2 + 1", "_LEAST_PARTS: Final = 2 * 3 + 1", "strings of many"
    ),
    Mutation("session/joinable.py", "not any(map(self._needs_script, operations))", "False", "strings of many"),
    Mutation("session/together.py", "and not form.names_members:", "and False:", "together, in few calls"),
    # A few requests, or a transaction, of each of many clients.
    Mutation("relay/joint.py", "if _BETWEEN in port.request:", "if False:", "joint, bytes of two"),
    Mutation("relay/joint.py", "if is_transaction:", "if False:", "joint, few"),
    Mutation("relay/joint.py", "islice(rest, count)", "islice(rest, 1)", "joint, few"),
    Mutation("relay/joint.py", "piece, refused=refused,", "piece, refused=False,", "joint, few"),
    Mutation("session/session.py", " and together.may_replace_transactions", "", "joint, MULTI forbidden"),
    Mutation("session/plain.py", "if first and is_whole and coverage", "if False and coverage", "joint, few"),
    # A transaction as one call.
    Mutation("session/together.py", "standing.watched.begun or ", "", "small transactions"),
    Mutation("session/watched.py", "        self.begun = True\n", "", "small transactions"),
    Mutation("session/together.py", "standing.rights.all_may and ", "", "MULTI forbidden"),
    Mutation(
        "session/joinable.py",
        "few.script[1].declared and few.script[1].takes_memory",
        "few.script[1].declared",
        "queued, refused",
    ),
    Mutation(
        "session/joinable.py",
        "not (few.script and few.script[1].declared and few.script[1].takes_memory)",
        "few.script is None",
        "queued, refused on the oldest",
    ),
    Mutation("wire/elements.py", "_OK + replies + _ABORTED\n", "_OK + replies\n", "queued, refused"),
    Mutation("relay/farewell.py", "transport.abort()  # TLS would", "pass  # TLS would", "idle clients by TLS"),
    Mutation("server.py", "if self._finishing:", "if False:", "who comes as it stops"),
    Mutation("server.py", "asyncio.timeout_at(made_by)", "asyncio.timeout_at(when)", "a silent handshake"),
    Mutation(
        "server.py",
        "async with asyncio.timeout(seconds):\n                for known in",
        "async with asyncio.timeout(None):\n                for known in",
        "no answer without a login",
    ),
    Mutation("listen/predecessor.py", "        held_signals.check()\n", "", "told while it waits"),
    Mutation(
        "listen/predecessor.py",
        "        return False\n    return True",
        "        raise\n    return True",
        "a full queue",
    ),
    Mutation("loop.py", "            hold()\n", "            pass\n", "a late signal"),
    Mutation("server.py", "sum(map(self._cut_short, list(self._connections)))", "0", "streams at the end"),
    Mutation("relay/conversation.py", '    self._ending.turn_away(b"")', "    pass", "streams at the end"),
    Mutation("server.py", "sum(not connection.is_answered for", "sum(True for", "answered at the end"),
    Mutation("relay/client.py", "if self._first is First.AWAITED and", "if False and", "idle"),
    Mutation("relay/progress.py", "if self._session.hears_unasked else", "if False else", "messages to who has left"),
    Mutation("wire/framing.py", "position = small.end()", "return size", "hostile bytes"),
    Mutation(
        "session/intake.py", "if self._standing.is_stranger and not reader.within and", "if False and", "before a login"
    ),
    Mutation("relay/budget.py", "self.total <= self.limit", "True", "held limit"),
    Mutation("wire/reply.py", "return _SIGN_SIZE * count if count > _FEW else 0", "return 0", "signs are held"),
    Mutation("relay/budget.py", "self._budget.account(self.bytes + self.beside, 0)", "pass", "held limit"),
    Mutation("session/reads.py", "return self._size if self._size > _LITTLE else 0", "return 0", "reads are held"),
    Mutation("session/reads.py", "        self._size -= size\n", "", "reads are held"),
    Mutation("session/reads.py", "            and self._size <= _MOST_KEPT\n", "", "reads are bounded"),
    Mutation("session/reads.py", "if self._again and batch in self._unnamed:", "if False:", "sent twice"),
    Mutation("session/reads.py", "if self._again and batch in self._unnamed:", "if False:", "a reply that waits"),
    Mutation("upstream/certificates.py", "if not settings.tls_verify:", "if True:", "wrong authority"),
    # What only concurrent clients, and deadlines of a few ms, show.
    Mutation(_LUA + "shared/clear.lua", "shadow, 0, moment, 'limit'", "shadow, 0, moment + 5, 'limit'", "histories"),
    Mutation(_LUA + "shared/clear.lua", "shadow, 0, moment, 'limit'", "shadow, 0, '+inf', 'limit'", "histories"),
    Mutation(_LUA + "add.lua", "if call('exists', shadow) == 1 then", "if false then", "SPOP"),
    Mutation(
        _LUA + "expire.lua",
        "elseif stored and math.abs(stored) <= tonumber(before) then",
        "elseif false then",
        "together, index",
    ),
    Mutation(_LUA + "expire.lua", "if deadline <= moment then", "if deadline <= moment - 5 then", "histories"),
    # What the admin port tells, and what it takes.
    Mutation(
        "expiry/engine.py", "members_expired_total[trigger] += members", "members_expired_total[trigger]", "counts"
    ),
    Mutation("metrics/traffic.py", "max(0, received - connection.received)", "received", "bytes"),
    Mutation(
        "status/look.py",
        "shown(rule.pattern) if self._with_names else None",
        "shown(rule.pattern)",
        "names on the page",
    ),
    Mutation("status/look.py", "shown(name) if self._with_names else None", "shown(name)", "names on the page"),
    Mutation("status/page.py", 'data.replace("<", ', 'data.replace("\\0", ', "hostile names on the page"),
    Mutation("status/page.py", "<bdi>{escape(name)}</bdi>", "<bdi>{name}</bdi>", "hostile names on the page"),
    Mutation("status/names.py", "one if one.isprintable() else", "one if True else", "hostile names on the page"),
    Mutation("status/status.py", "time.monotonic() - self._made < FRESH_SECONDS", "False", "many who look"),
    Mutation(_LUA + "forecast.lua", "'-inf', moment + milliseconds", "'-inf', '+inf'", "what falls due"),
    Mutation(_LUA + "sizes.lua", "ARGV[place] ~= selected", "not selected", "what falls due"),
    # A deadline passes while a request is on its way.
    Mutation(_LUA + "expire.lua", "present <= moment and passed(", "false and passed(", "expire under way"),
    Mutation(_LUA + "shared/passed.lua", "discard(kind, key, members)", "", "expire under way"),
    Mutation(
        _LUA + "shared/passed.lua",
        "if not owed(kind, key, shadow, index, members) then return false end",
        "",
        "told of what passes",
    ),
    # It is told of by a note.
    Mutation(_LUA + "shared/overdue.lua", "call('hset', own, unpack(notes))", "", "late"),
    Mutation(_LUA + "shared/overdue.lua", " .. ' ' .. deadline .. ' ' .. key", " .. ' 0 ' .. key", "late"),
    Mutation(_LUA + "shared/lapse.lua", "if key == own and not strict then", "if false then", "late"),
    Mutation(
        _LUA + "shared/clear.lua",
        "gone = gone or kind ~= 'set' and kind ~= 'hash' and kind ~= 'zset' and kind ~= 'list'",
        "",
        "another kind",
    ),
    Mutation("expiry/tracker.py", "self._commands.note_rules(told=told)", "pass", "late"),
    Mutation(_LUA + "shared/lapse.lua", "if paid or key == own", "if true or key == own", "told in order"),
    Mutation(_LUA + "shared/clear.lua", "if notes == 500 and walks then", "if false then", "many told in order"),
    Mutation(_LUA + "shared/clear.lua", "if notes == 0 then", "if true then", "a new life by a note"),
    # Many elements of a list at once.
    Mutation(_LUA + "shared/passed.lua", "not seek(kind, key, members)", "true", "many elements under way"),
    Mutation(_LUA + "shared/passed.lua", "not seek(kind, key, members)", "false", "elements of who may little"),
    Mutation(_LUA + "persist_members.lua", "over[place] or ", "", "many persisted under way"),
    Mutation(_LUA + "shared/overdue.lua", "found = seek(kind, key, members)", "", "many elements under way"),
    Mutation(_LUA + "shared/discard.lua", "from + place - 1,", "from + place,", "many elements under way"),
    Mutation(_LUA + "shared/discard.lua", "and may('lset', key, 0, '')", "", "elements of who may little"),
    Mutation(_LUA + "shared/overdue.lua", "bytes > 65536 or", "", "large values"),
    Mutation(_LUA + "shared/overdue.lua", "if kind == 'hash' then discard(kind, key, part) end", "", "large values"),
    Mutation(_LUA + "shared/overdue.lua", "if there ~= wanted and", "if false and", "notes spoilt"),
    Mutation(
        "session/multi.py", "if self._out.put_aside(self._rewriter.beside.clear_front(keys)):", "if True:", "queued"
    ),
    # A key gets its first deadline while a transaction is open that adds members to it.
    Mutation("session/transaction.py", "and not self.anticipates ", "", "not spoilt"),
    # A first deadline is set by somebody who may not.
    Mutation(
        "session/announcing.py", "keys if not keys or self._standing.may_expire(keys) else []", "keys", "few cut off"
    ),
    Mutation(_LUA + "may.lua", "allowed and ARGV[1] or ''", "ARGV[1]", "few who may nothing in scripts"),
    Mutation("session/permits.py", "if granted or self._singly or len(keys) == 1:", "if True:", "few together"),
    Mutation("session/changes.py", "and standing.rights.by_database", "and False", "few by database"),
    Mutation(_LUA + "rename.lua", "need(ARGV[1], KEYS[2], KEYS[4])", "", "few by selectors"),
    Mutation(_LUA + "persist.lua", "need_refresh(shadow)", "", "few change nothing"),
    Mutation(_LUA + "replace.lua", "need_index(KEYS[3], 'zrem', KEYS[3])", "", "few who store"),
    Mutation(_LUA + "rename.lua", "need_index(KEYS[5], 'zrem', KEYS[5])", "", "few who rename"),
    Mutation("session/rights.py", " and not self._all_allowed_at_multi", "", "few meanwhile"),
    Mutation(
        "session/multi.py",
        "transaction.presumed.gives(self._rewriter.unclear(command, request.arguments))",
        "False",
        "few give and rename",
    ),
    Mutation(
        "session/transaction.py",
        "            self._keep(self.presumed.carry(keys, having) if moves else keys, self.presumed.given)\n",
        "",
        "few give and rename",
    ),
    Mutation("session/multi.py", " or transaction.presumed.is_wrong(having)", "", "few while it waits"),
    Mutation(
        "session/transaction.py",
        "self._keep(self._coverage.among(self.presumed.behind(keys)), self.presumed.without)",
        "pass",
        "few while it waits",
    ),
    Mutation("session/inquiry.py", "tuple(transaction.presumed.without)", "()", "few who may not"),
    Mutation("session/inquiry.py", "self._standing.rights.reach(command.name, names)", "False", "few who may"),
    Mutation("session/grants.py", "any(_fits(pattern, name) for pattern in self.patterns)", "True", "few who may not"),
    Mutation("session/rights.py", " zrange zrangebyscore", " zrangebyscore", "few without a command"),
    Mutation("session/presumed.py", "(key, *self._sources.get(key, ()))", "(key,)", "few moved"),
    Mutation("session/presumed.py", "if source in self.given or source in having:", "if True:", "few moved"),
    Mutation("session/presumed.py", "having is None or ", "having is not None and ", "few unanswered"),
    Mutation("session/judge.py", "if question.unclear and answered else", "if question.unclear else", "few unanswered"),
    Mutation("session/remaining.py", " or replies[2] not in _ABSENT", "", "who may only read"),
    Mutation(
        "relay/waiting.py",
        "self._flow.reads_on = silent and self._flow.is_held_up",
        "pass",
        "leaves behind a blocking request",
    ),
    Mutation(
        _LUA + "batch.lua",
        "score_each(shadow, members))) do each[place] = false end",
        "score_each(shadow, members))) do break end",
        "many expire under way",
    ),
    Mutation(_LUA + "persist.lua", "deadline <= moment", "false", "persist under way"),
    Mutation(_LUA + "batch.lua", "do scores[place] = false end", "do break end", "many persist under way"),
    # Who ends is looked after, whatever waits for a reply.
    Mutation(
        "relay/waiting.py", "state in JUDGING and self._session.reads.under_way > 0", "False", "left behind reads"
    ),
    Mutation("relay/waiting.py", "else ended and not self._ending.untold", "else False", "left as it stops"),
    Mutation(
        "session/dispatch.py", "            self._out.note_blocker()\n", "            pass\n", "left behind reads"
    ),
    Mutation("relay/vigil.py", " and await self._is_stuck(answered, stood, quiet)", "", "long replies"),
    Mutation(
        "relay/vigil.py",
        "if doing is Doing.NOTHING and not progress.unsigned:",
        "if not progress.unsigned:",
        "leaves behind a blocking request",
    ),
    Mutation("relay/vigil.py", "if progress.may_block or now()", "if True or now()", "a slow way"),
    Mutation("relay/flow.py", " + self._transport.get_write_buffer_size()", "", "given out at once"),
    Mutation("relay/client.py", "and self._first is First.AWAITED:", "and False:", "left unused"),
    Mutation("relay/farewell.py", "        self._count()\n", "", "given out at last"),
    Mutation("relay/inspection.py", "            self._next = None\n", "", "long replies"),
    Mutation(
        "relay/inspection.py", "                    return None\n", "                    return {}\n", "busy script"
    ),
    Mutation("session/alone.py", "and hash(key) not in self._settled", "", "late replies"),
    Mutation("session/alone.py", " and not self._has_looked", "", "late replies"),
    # Requests are as long as they are.
    Mutation(
        "wire/batch.py", " + sum([len(str(len(request)))", " + 0 * sum([len(str(len(request)))", "together, mixed"
    ),
    # What waits behind a late reply.
    Mutation(
        "relay/conversation.py",
        "self._flow.held or session.replies.waiting",
        "session.replies.waiting",
        "waited",
    ),
    Mutation(
        "relay/conversation.py",
        "self._refuse_at_once()\n",
        "self._ending.turn_away(self._no_room())\n",
        "waits for too much",
    ),
    # What a transaction says about replies, and what is asked in silence.
    Mutation("session/hearing.py", "if wish is Wish.OFF or wish is Wish.SKIP:", "if False:", "queued words"),
    Mutation(
        "session/hearing.py", "self._opening.ends = True, out.queued", "_ = True, 0", "a refused MULTI in silence"
    ),
    Mutation("session/outgoing.py", "        self.queued += count\n", "", "a refused MULTI in silence"),
    Mutation("wire/silence.py", "place != opening.ends or", "", "a refused MULTI in silence"),
    Mutation("wire/silence.py", "if place == 0 and not refused:", "if False:", "a refused MULTI in silence"),
    Mutation("session/standing.py", "self._uncounted.discard(kind)", "pass", "many channels"),
    Mutation("session/standing.py", "self._uncounted.discard(kind)", "self._uncounted.clear()", "many channels"),
    Mutation("wire/reply.py", "and not may_answer_wish(replies[line + 1])", "and False", "a master that is down"),
    Mutation("wire/silence.py", 'rb"\\*[0-9]"', 'rb"\\*"', "queued words"),
    Mutation("wire/replies.py", "and data[position] == _PUSH:", "and False:", "pushes in a silence"),
    Mutation("relay/lanes.py", "if self._writes and self._all.anybody_leaves:", "if False:", "a shared push"),
    Mutation("relay/upstream.py", " or self._read_pauses.has(ReadPause.FULL)", "", "an end that nobody reads"),
    Mutation("session/reads.py", "not keys.isdisjoint(request[1:2])", "request[1] in keys", "short requests"),
    Mutation("session/intake.py", " or self._reads.guard_from(reader, now)", "", "reads one by one"),
    Mutation("session/reads.py", "            reader.skip(len(raw))\n", "", "reads one by one"),
    Mutation("relay/ending.py", "differs = self._was_held or", "differs = False and", "half closed"),
    Mutation("relay/ending.py", "defers = halves and", "defers = False and", "a half close behind a silence"),
    Mutation("relay/hangup.py", "fileno=number)", "fileno=os.dup(number))", "a half close without files"),
    Mutation("relay/ending.py", "        self._end_late()\n", "", "left at once in a silence"),
    Mutation(
        "relay/ending.py", "and not self._session.loss.is_possible:", "and True:", "a half close behind a silence"
    ),
    Mutation(
        "session/loss.py",
        "return self._mixed >= self._standing",
        "return 0 <= self._standing",
        "left in front of a silence",
    ),
    Mutation("session/loss.py", " or standing.subscriptions.begun", "", "a half close behind a silence"),
    Mutation("session/loss.py", " or standing.caches", "", "a half close behind a silence"),
    Mutation("session/hearing.py", "out.loss.note_wish(wish, 0)", "pass", "a half close behind a silence"),
    Mutation(
        "session/outgoing.py",
        "(standing.hears_echoes or unproved) and",
        "standing.hears_echoes and",
        "a subscriber after a RESET",
    ),
    Mutation("session/loss.py", "if 0 <= self._behind < place:", "if False:", "a half close behind a silence"),
    Mutation(
        "session/intake.py",
        "if blocks and standing.replies.silence.suspected:",
        "if False:",
        "left in a silence, apart",
    ),
    Mutation("session/loss.py", "return self._reached >= 0 and", "return False and", "left in a silence"),
    Mutation("wire/reply.py", "PushesOnly() if data[0] == _PUSH else None", "None", "left after a message"),
    Mutation("wire/replies.py", "self.between or self._unasked or", "self.between or", "left after a long message"),
    Mutation(
        "session/dispatch.py", "            self._out.precede_blocker()\n", "            pass\n", "left in a silence"
    ),
    Mutation(
        "relay/vigil.py", "progress.may_block and await self._is_blocked()", "False", "left as a transaction waits"
    ),
    Mutation(
        "session/outgoing.py", "Blocker(self.blocker.number + count", "Blocker(self.blocker.number", "left after jobs"
    ),
    Mutation("session/standing.py", "self.resp3 = self.resp3 and resp3", "self.resp3 = resp3", "a refused greeting"),
    Mutation("session/changes.py", "self._out.ask_first(_HELLO, standing.subscriptions.learn())", "pass", "subscriber"),
    Mutation(
        "session/standing.py",
        "if self._greetings == greetings:  # else",
        "if True:  # else",
        "a refused greeting",
    ),
    Mutation("session/removals.py", "if self._size + size > _KEPT:", "if False:", "many names"),
    # A client writes all that it has before it reads.
    Mutation(
        "relay/flow.py", "wanted = wanted and self.reads_on and", "wanted = False and", "written before it is read"
    ),
    # A transaction is looked at once more before it runs.
    Mutation("session/transaction.py", "self._keep(blind_keys, self._blind)", "pass", "queued blindly"),
    # Long pipelines.
    Mutation(
        "session/streams.py",
        "self.pipelines[owner] = self._chunks",
        "self.pipelines.pop(owner, 0)",
        "long pipeline",
    ),
    # Another server becomes the upstream.
    Mutation("server.py", "closed = self._fence.close()", "closed = 0", "another server"),
    Mutation("server.py", "self._tracker.start_anew()", "pass", "another server"),
    Mutation("upstream/sentinel.py", "2 * votes[best] > len(self._sentinels)", "False", "words of Sentinels"),
    Mutation("upstream/sentinel.py", "epochs[best] > self._epoch", "True", "words of Sentinels"),
    Mutation("upstream/sentinel.py", "2 * len(steady) > len(self._sentinels)", "False", "words of Sentinels"),
    Mutation("upstream/sentinel.py", "max(said.since, against) + STEADY_SECONDS", "0", "words of Sentinels"),
    Mutation("upstream/sentinel.py", "now >= self._since + GRACE_SECONDS", "True", "words of Sentinels"),
    Mutation("upstream/endpoint.py", "if not primary and self.sentinels:", "if False:", "another server"),
    Mutation("upstream/endpoint.py", "self._where.on_read_only()", "pass", "a demoted primary"),
    # Several processes are one proxy.
    Mutation("workers/fellows.py", "self._board.clients() > self._most", "clients >= self._most", "limits of workers"),
    Mutation("workers/fellows.py", "self._board.held() <= self.limit", "self.total <= self.limit", "limits of workers"),
    Mutation("workers/fellows.py", "if best == self._worker:", "if True:", "balance of workers"),
    # One proxy takes the place of another.
    Mutation(
        "relay/client.py", "            lacks_first = True", "            lacks_first = False", "taken over, in parts"
    ),
    Mutation("relay/client.py", "lacks_first = talk.has_begun_request", "lacks_first = False", "taken over, in parts"),
    Mutation("listen/succession.py", "self._signals.relieved = True", "pass", "taken over, in parts"),
    Mutation(
        "relay/client.py", "self._first is First.BEGUN and talk.has_only_begun", "False", "taken over within a request"
    ),
    Mutation(
        "relay/client.py",
        "self._first is First.BEGUN and talk.has_only_begun",
        "talk.has_begun_request",
        "taken over within a request",
    ),
    Mutation(
        "relay/conversation.py", "and not self._session.intake.reader.past_first", "", "taken over within a request"
    ),
    Mutation(
        "wire/request.py",
        "if request is not None and not self._in_body:\n            self.past_first",
        "if True:\n            self.past_first",
        "taken over within a large one",
    ),
    Mutation(
        "listen/succession.py", "found.listener, found.ended\n", "found.listener, made.alone\n", "taken by nobody"
    ),
    Mutation(
        "listen/succession.py",
        "return self._has_not_left() and self.alone.is_set()",
        "return self._has_not_left()",
        "taken by nobody",
    ),
    Mutation(
        "listen/succession.py",
        "self._has_not_left if marks is None else self._owns",
        "self._has_not_left",
        "taken by nobody",
    ),
    Mutation(
        "listen/succession.py", "self._has_not_left if marks is None else self._owns", "self._owns", "bound in vain"
    ),
    Mutation("listen/succession.py", "return not self._has_left", "return True", "left to one"),
    Mutation("listen/succession.py", "is not None and self._has_all and", "is not None and False and", "left to one"),
    Mutation("listen/succession.py", "is not None and self._has_all and", "is not None and", "left to nobody"),
    Mutation(
        "listen/succession.py", "        self._part(visitor)\n\n    def _part", "\n    def _part", "a silent visitor"
    ),
    Mutation("listen/succession.py", "visitor.send(GIVES_UP)", "pass", "a silent visitor"),
    Mutation(
        "listen/succession.py", "loop.remove_reader(self._listener)\n            loop", "loop", "taken without files"
    ),
    Mutation(
        "listen/succession.py", "loop.call_later(_PAUSE_SECONDS, self._await_visitor)", "pass", "taken without files"
    ),
    Mutation("tls.py", "call_soon(Beneath.on_freed, _KEPT)", "time()", "closed TLS"),
    Mutation(
        "tls.py",
        "call_soon(Beneath.on_freed, _KEPT)",
        "call_soon(Beneath.on_freed, 0 if self._above is None else _KEPT)",
        "begun TLS",
    ),
    Mutation("relay/budget.py", "self._budget.on_freed(self._unread - size)", "pass", "left unread"),
    Mutation("listen/predecessor.py", "self._early or self._way.recv(1)", "self._way.recv(1)", "left at once"),
    Mutation("listen/predecessor.py", "self._way.send(STARTS)", "pass", "a slow start"),
    Mutation("listen/predecessor.py", "if time.monotonic() >= until:", "if True:", "one that ends"),
    Mutation("server.py", "[serving, left, stopped, *tasks]", "[serving, stopped, *tasks]", "left to one"),
    Mutation("workers/supervisor.py", "worker.tell(Order.ALONE)", "pass", "left to workers"),
    Mutation(
        "server.py",
        "await asyncio.wait([left, stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)\n"
        "                if left.done() and not accepts:",
        "if not accepts:",
        "refused at the last moment",
    ),
    Mutation("listen/binding.py", "file = file_at(where, marks)", "pass", "taken over"),
    Mutation("admin/server.py", "succession.at_release.append(self.release)", "pass", "told by the new one"),
    Mutation("listen/succession.py", "            self._predecessor.given.close()\n", "", "no longer wanted"),
    Mutation("listen/succession.py", "                file.remove()", "                pass", "no longer wanted"),
    Mutation("listen/sockets.py", "self.marks = marks or _marks(path)", "self.marks = _marks(path)", "files of others"),
    Mutation("listen/predecessor.py", 'self.given.marks[str(told["address"])] = marks', "pass", "no longer wanted"),
    Mutation("admin/server.py", "await alone.wait()", "pass", "answered by the one that serves"),
    Mutation("reporting.py", "self.readiness.leave() if relieved else ", "", "a late probe"),
    Mutation("workers/overview.py", "{**sample.labels, **worker}", "sample.labels", "metrics of workers"),
    Mutation("workers/worker.py", "reporting.tell, News.STOP", "reporting.tell, News.OBSTACLE", "a signal to a worker"),
    Mutation("workers/supervisor.py", "self._failed = True", "pass", "a killed worker"),
    Mutation("workers/supervisor.py", "if self._has_begun(worker):", "if True:", "a worker that loads"),
    Mutation(
        "workers/supervisor.py",
        "worker in self._dropped or not self._has_begun(worker)",
        "False",
        "a worker that loads",
    ),
    # Standard streams.
    Mutation("standard_streams.py", "            self.error = error\n", "", "streams of a subcommand"),
    Mutation("standard_streams.py", '"backslashreplace"', '"strict"', "streams of a subcommand"),
    Mutation("standard_streams.py", "os.kill(os.getpid(), signal.SIGPIPE)", "pass", "streams of a subcommand"),
    Mutation("standard_streams.py", "(1, os.O_RDONLY)", "(1, os.O_WRONLY)", "streams of a subcommand"),
    Mutation(
        "standard_streams.py",
        "os.set_inheritable(os.open(os.devnull, flags), True)",
        "pass",
        "a proxy without streams",
    ),
    # What others wait for, and who is turned away.
    Mutation(
        "expiry/underway.py",
        "                if owner.sender.heard() == heard:\n                    owner.given_up = heard",
        "                if owner.sender.heard() == heard:\n                    pass",
        "a slow upload",
    ),
    Mutation("relay/upstream.py", "if self._transport.get_write_buffer_size():", "if True:", "no job"),
    # In front of a cluster node.
    Mutation(_LUA + "shared/call.lua", "if nothing ~= nil and far(", "if false and far(", "a key on its way"),
    Mutation("expiry/tracker.py", "meet(clustered=clustered)", "meet(clustered=False)", "a key on its way"),
    Mutation(
        "session/script_calls.py",
        "return self._names.declared(keys) if keys else None",
        "return None",
        "a key on its way",
    ),
    Mutation(
        "session/script_calls.py",
        "return self._names.declared(keys) if keys else None",
        "return None",
        "a refused deadline",
    ),
    Mutation("session/hearing.py", 'if arguments[0].upper() == b"ASKING":', "if False:", "ASKING while blind"),
    Mutation("expiry/engine.py", "await self._drop_leftovers(question.leftover)", "pass", "deadlines left behind"),
    Mutation(
        "session/script_calls.py",
        'present = "" if declared is None else self.shadows(keys)',
        'present = ""',
        "a shadow ahead",
    ),
    Mutation(
        "expiry/tracker.py",
        "        if await self._indexes.has_traces():\n            self._coverage.ever = True\n",
        "        self._coverage.ever = self._coverage.ever or await self._indexes.has_traces()\n",
        "announced to who begins",
    ),
    Mutation("expiry/tracker.py", "await self._indexes.survey(anew=True)", "pass", "a proxy in the midst"),
    Mutation("expiry/tracker.py", "await self._indexes.survey(anew=True)", "pass", "a start behind the index"),
    Mutation("expiry/indexes.py", "        await self.survey()\n", "", "a slot that comes again"),
    Mutation(
        "session/inquiry.py", "            return Question(arrivals=arrivals)", "            pass", "a copy left behind"
    ),
    Mutation(_LUA + "arrive.lua", "ARGV[place] == '1' or ", "", "a copy left behind"),
    Mutation(
        "session/inquiry.py",
        "            return Question(arrivals=arrivals)",
        "            pass",
        "deadlines meet their name",
    ),
    Mutation(_LUA + "arrive.lua", "elseif call('exists', shadow) == 0 then", "elseif false then", "a copy in the way"),
    Mutation(
        "session/moves.py",
        "names[key] = names[self._names.shadow(key)] = None",
        "names[self._names.shadow(key)] = names[key] = None",
        "a copy in the way",
    ),
    Mutation("session/arriving.py", "self._unmade.add(shadow_of)", "pass", "past a proxy"),
    Mutation("session/moves.py", "name is not None and not self._is_sent(name)", "False", "a key that has gone"),
    Mutation(
        "session/moves.py",
        "name is not None and not self._is_sent(name)",
        "name is not None",
        "a shadow that could not come",
    ),
    Mutation("expiry/engine.py", "await self._clear_on_its_way(keys)", "pass", "a later deadline"),
    Mutation(
        "expiry/engine.py",
        "if slots is not None and number in slots.owned and number not in slots.moving:",
        "if False:",
        "a slot that comes under way",
    ),
    Mutation(
        "expiry/tracker.py",
        "(slots.owned - slots.moving).isdisjoint(slots.unread | self._arrived)",
        "True",
        "a start while it is down",
    ),
    Mutation(
        "session/rights.py",
        "declared=self._names.declared(())",
        "declared=None",
        "rights while a slot moves",
    ),
    Mutation("session/hearing.py", ' or first == b"ASKING"', "", "rights while a slot moves"),
    Mutation(
        "session/beside.py",
        "declared=self._names.declared(())",
        "declared=None",
        "arguments that are no keys",
    ),
    Mutation(
        "session/script_calls.py",
        "self.all_keys(command, request.arguments) if script in _OF_SOME_KEYS else []",
        "[]",
        "keys in two places",
    ),
    Mutation(
        "expiry/indexes.py", "slots.unread |= slots.take(primary", "slots.take(primary", "a slot that came before"
    ),
    Mutation("expiry/engine.py", "await self._indexes.look_at_role()", "pass", "a takeover"),
    Mutation("upstream/trail.py", "(self._name, *self._others)", "(self._name,)", "a name of another"),
    Mutation("upstream/refusals.py", "if is_proxys(str(error)):", "if False:", "an outage behind"),
    Mutation(
        "server.py",
        'if self._names.slots is not None:\n            return b""',
        'if False:\n            return b""',
        "a dead node",
    ),
    # What is listed of deadlines.
    Mutation(
        "looking/merge.py",
        "not (self._open and self._open[0].read[0][:2] <= self._indexes[0].behind)",
        "not self._open",
        "deadlines in order",
    ),
    Mutation("looking/merge.py", "if is_there is not False and (", "if (", "deadlines in order"),
    Mutation("looking/merge.py", "heapq.nsmallest(left, self._open)", "self._open[-left:]", "deadlines in order"),
    Mutation("looking/merge.py", "await self._read_on(first)", "pass", "deadlines in order"),
    Mutation("looking/walk.py", "if element > self.last]", "if True]", "deadlines in order"),
    Mutation(
        "looking/walk.py",
        "if self._start and not (found and found[0] <= self.last):",
        "if False:",
        "deadlines in order",
    ),
]
