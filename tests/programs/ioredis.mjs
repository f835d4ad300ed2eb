// What a program of ioredis gets from the server at PORT, a line each: node ioredis.mjs PORT
import { createHash } from "node:crypto";
import { Redis } from "ioredis";

const port = Number(process.argv[2]);
const open = (options = {}) => new Redis({ host: "127.0.0.1", port, ...options });
const show = (name, value) => console.log(name, JSON.stringify(value));
const refused = (promise) => promise.then(() => "taken", (error) => error.message);
const digest = (value) => createHash("sha1").update(JSON.stringify(value)).digest("hex");

const client = open();
await client.flushall();

show("values", [
  await client.set("plain", "ü\r\n$3"), await client.get("plain"), await client.get("none"), await client.incr("n"),
  await client.set("nx", "a", "NX"), await client.set("nx", "b", "NX"), await client.mget("plain", "none", "n"),
]);
const large = Buffer.alloc(3_000_000, "a\r\n+OK\r\n");
await client.set("large", large);
show("large", [large.equals(await client.getBuffer("large")), await client.strlen("large")]);
show("collections", [
  await client.hset("h", { a: "1", b: "", c: "3" }), await client.hgetall("h"), await client.hmget("h", "a", "none"),
  await client.rpush("l", "x", "y", "x"), await client.lrange("l", 0, -1), await client.lrem("l", 0, "x"),
  await client.zadd("z", 1.5, "m", 2, "n"), await client.zrange("z", 0, -1, "WITHSCORES"),
  await client.zscore("z", "o"),
  await client.sadd("s", "b", "a"), (await client.smembers("s")).sort(), await client.smismember("s", "a", "c"),
]);
show("refusals", [
  await refused(client.lpush("s", "x")), await refused(client.call("NOSUCH", "a")), await refused(client.get("s")),
  await refused(client.call("EXPIREMEMBERS", "s")), await refused(client.incr("plain")),
]);

const pipeline = client.pipeline();
for (let number = 0; number < 2000; number++) {
  pipeline.set(`p${number % 50}`, number).sadd("ps", number % 90).lpush("s", "wrong").hincrby("ph", number % 7, number);
}
show("pipeline", digest((await pipeline.exec()).map(([error, value]) => (error ? error.message : value))));

const many = await Promise.all([...Array(12).keys()].map(async (who) => {
  const one = open({ enableAutoPipelining: who % 2 === 1 });
  const replies = await Promise.all([...Array(400).keys()].map((number) => {
    const key = `many${who}:${number % 9}`;
    return [() => one.set(key, number), () => one.get(key), () => one.incrby(`${key}:n`, number),
      () => one.sadd(`${key}:s`, number), () => one.mget(key, `${key}:n`)][number % 5]();
  }));
  one.disconnect();
  return replies;
}));
show("many", digest(many));

show("transaction", await client.multi().sadd("t", 1).sadd("t", 1).lpush("t", 1).scard("t").exec());
await client.watch("watched");
await open().set("watched", "changed");
show("watch", [await client.multi().get("watched").exec(), await client.multi().get("watched").exec()]);

client.defineCommand("both", { numberOfKeys: 1, lua: "return {redis.call('INCR', KEYS[1]), ARGV[1]}" });
show("script", [await client.both("counted", "a"), await client.both("counted", "b")]);
await client.script("FLUSH");
show("script again", await client.both("counted", "c"));

const subscriber = open();
await subscriber.subscribe("news");
await subscriber.psubscribe("n*");
const heard = [];
subscriber.on("message", (channel, text) => heard.push([channel, text]));
subscriber.on("pmessage", (pattern, channel, text) => heard.push([pattern, channel, text]));
show("publish", await client.publish("news", "hello"));
while (heard.length < 2) await new Promise((resolve) => setTimeout(resolve, 2));
await subscriber.unsubscribe("news"); // (without a name it waits for the pattern's end too)
await subscriber.punsubscribe("n*");
show("heard", [heard, await subscriber.get("plain")]);

const waiter = open();
const waited = waiter.blpop("jobs", 20);
while (!(await client.client("LIST")).includes("cmd=blpop")) await new Promise((resolve) => setTimeout(resolve, 2));
await client.rpush("jobs", "first", "second");
show("blocking", [await waited, await waiter.blpop("jobs", 1), await waiter.brpop("jobs", 0.05)]);

const found = [];
for await (const page of client.scanStream({ match: "p*", count: 7 })) found.push(...page);
show("scan", [...new Set(found)].sort());

const other = open({ db: 3 });
show("database", [await other.set("plain", 3), await other.dbsize(), await client.get("plain")]);

await client.xgroup("CREATE", "stream", "group", "$", "MKSTREAM");
await client.xadd("stream", "1-1", "field", "value");
show("stream", await client.xreadgroup("GROUP", "group", "me", "COUNT", 1, "STREAMS", "stream", ">"));

await client.client("KILL", "ID", await other.client("ID"));
show("again", [await other.get("plain"), await other.dbsize()]);

// Members with deadlines, if the server has them.
if ((await refused(client.call("EXPIREMEMBER", "none", "m", 1))) === "taken") {
  await client.sadd("cart", "apple", "pear", "plum");
  const set = await client.pipeline().call("PEXPIREMEMBER", "cart", "apple", 60)
    .call("EXPIREMEMBER", "cart", "pear", 100).call("TTL", "cart", "pear")
    .call("PERSIST", "cart", "pear").call("PTTL", "cart", "pear").exec();
  while (await client.sismember("cart", "apple")) await new Promise((resolve) => setTimeout(resolve, 2));
  console.log("members", JSON.stringify([set, (await client.smembers("cart")).sort()]));
}
process.exit(0);
