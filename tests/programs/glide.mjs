// What a program of Valkey GLIDE gets from the server at PORT, a line each: node glide.mjs PORT RESP
import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { Batch, Decoder, GlideClient, Logger, ProtocolVersion, Script } from "@valkey/valkey-glide";

Logger.setLoggerConfig("off");
const [port, version] = process.argv.slice(2).map(Number);
const protocol = version === 3 ? ProtocolVersion.RESP3 : ProtocolVersion.RESP2;
const open = (more = {}) =>
  GlideClient.createClient({ addresses: [{ host: "127.0.0.1", port }], protocol, requestTimeout: 20_000, ...more });
const show = (name, value) => console.log(name, JSON.stringify(value));
const refused = (promise) => promise.then(() => "taken", (error) => error.message);
const digest = (value) => createHash("sha1").update(JSON.stringify(value)).digest("hex");

const client = await open();
await client.flushall();

show("values", [
  await client.set("plain", "ü\r\n$3"), await client.get("plain"), await client.get("none"), await client.incr("n"),
  await client.mget(["plain", "none", "n"]), await client.ping(),
]);
const large = Buffer.alloc(3_000_000, "a\r\n+OK\r\n");
await client.set("large", large);
show("large", [large.equals(await client.get("large", { decoder: Decoder.Bytes })), await client.strlen("large")]);
show("collections", [
  await client.hset("h", { a: "1", b: "", c: "3" }), await client.hgetall("h"), await client.hmget("h", ["a", "none"]),
  await client.rpush("l", ["x", "y", "x"]), await client.lrange("l", 0, -1), await client.lrem("l", 0, "x"),
  await client.zadd("z", { m: 1.5, n: 2 }), await client.zrangeWithScores("z", { start: 0, end: -1 }),
  await client.zscore("z", "o"), await client.sadd("s", ["b", "a"]), [...(await client.smembers("s"))].sort(),
  await client.smismember("s", ["a", "c"]),
]);
show("refusals", [
  await refused(client.lpush("s", ["x"])), await refused(client.customCommand(["NOSUCH", "a"])),
  await refused(client.customCommand(["EXPIREMEMBERS", "s"])), await refused(client.incr("plain")),
]);

const many = await Promise.all([...Array(12).keys()].map(async (who) => {
  const one = await open();
  // It sends what is asked for at once in any order, so each of these has keys of its own.
  const replies = await Promise.all([...Array(100).keys()].map(async (number) => {
    const key = `many${who}:${number}`;
    return [await one.set(key, `${number}`), await one.get(key), await one.incrBy(`${key}:n`, number),
      await one.sadd(`${key}:s`, [`${number}`]), await one.mget([key, `${key}:n`])];
  }));
  one.close();
  return replies;
}));
show("many", digest(many));

const refusing = new Batch(true).sadd("t", ["1"]).sadd("t", ["1"]).lpush("t", ["1"]).scard("t");
show("transaction", await client.exec(refusing, false).then(String, String));
show("pipeline", await client.exec(new Batch(false).set("p", "1").incr("p").get("p"), true));
await client.watch(["watched"]);
await (await open()).set("watched", "changed");
const watching = () => client.exec(new Batch(true).get("watched"), true);
show("watch", [await watching(), await watching()]);

const script = new Script("return {redis.call('INCR', KEYS[1]), ARGV[1]}");
show("script", [await client.invokeScript(script, { keys: ["counted"], args: ["a"] })]);
await client.scriptFlush();
show("script again", await client.invokeScript(script, { keys: ["counted"], args: ["b"] }));

const channelsAndPatterns = { 0: new Set(["news"]), 1: new Set(["n*"]) };
const subscriber = await open({ protocol: ProtocolVersion.RESP3, pubsubSubscriptions: { channelsAndPatterns } });
while ((await client.pubsubNumPat()) < 1 || (await client.pubsubNumSub(["news"]))[0].numSub < 1) await sleep(2);
show("publish", await client.publish("hello", "news"));
const heard = [await subscriber.getPubSubMessage(), await subscriber.getPubSubMessage()];
show("heard", [heard.map((one) => [one.channel, one.message]), await subscriber.get("plain")]);

const waiter = await open();
const waited = waiter.blpop(["jobs"], 20);
while (!String(await client.customCommand(["CLIENT", "LIST"])).includes("cmd=blpop")) await sleep(2);
await client.rpush("jobs", ["first", "second"]);
show("blocking", [await waited, await waiter.blpop(["jobs"], 1), await waiter.brpop(["jobs"], 0.05)]);

const found = [];
for (let cursor = "0", page; cursor !== "0" || page === undefined;) {
  [cursor, page] = await client.scan(cursor, { match: "many0:1*", count: 7 });
  found.push(...page);
}
show("scan", [...new Set(found)].sort());
const other = await open({ databaseId: 3 });
show("database", [await other.set("plain", "3"), await other.dbsize(), await client.get("plain")]);

await client.customCommand(["CLIENT", "KILL", "ID", String(await other.clientId())]);
while ((await refused(other.ping())) !== "taken") await sleep(2);
show("again", [await other.get("plain"), await other.dbsize()]);

// Members with deadlines, if the server has them.
if ((await refused(client.customCommand(["EXPIREMEMBER", "none", "m", "1"]))) === "taken") {
  await client.sadd("cart", ["apple", "pear", "plum"]);
  const batch = new Batch(false).customCommand(["PEXPIREMEMBER", "cart", "apple", "60"])
    .customCommand(["EXPIREMEMBER", "cart", "pear", "100"]).customCommand(["TTL", "cart", "pear"])
    .customCommand(["PERSIST", "cart", "pear"]).customCommand(["PTTL", "cart", "pear"]);
  const set = await client.exec(batch, true);
  while (await client.sismember("cart", "apple")) await sleep(2);
  console.log("members", JSON.stringify([set, [...(await client.smembers("cart"))].sort()]));
}
process.exit(0);
