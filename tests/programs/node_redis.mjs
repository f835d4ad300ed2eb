// What a program of node-redis gets from the server at PORT, a line each: node node_redis.mjs PORT RESP
import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { createClient, createClientPool, defineScript } from "redis";

const [port, RESP] = process.argv.slice(2).map(Number);
const script = defineScript({
  NUMBER_OF_KEYS: 1,
  SCRIPT: "return {redis.call('INCR', KEYS[1]), ARGV[1]}",
  parseCommand: (parser, key, word) => { parser.pushKey(key); parser.push(word); },
  transformReply: undefined,
});
const options = { url: `redis://127.0.0.1:${port}`, RESP, scripts: { both: script } };
const open = async (more = {}) => {
  const client = createClient({ ...options, ...more });
  client.on("error", () => {}); // it connects again by itself
  return client.connect();
};
const show = (name, value) => console.log(name, JSON.stringify(value));
const refused = (promise) => promise.then(() => "taken", (error) => error.message);
const digest = (value) => createHash("sha1").update(JSON.stringify(value)).digest("hex");

const client = await open();
await client.flushAll();

show("values", [
  await client.set("plain", "ü\r\n$3"), await client.get("plain"), await client.get("none"), await client.incr("n"),
  await client.set("nx", "a", { NX: true }), await client.set("nx", "b", { NX: true }),
  await client.mGet(["plain", "none"]),
]);
const large = "a\r\n+OK\r\n".repeat(300_000);
await client.set("large", large);
show("large", [large === (await client.get("large")), await client.strLen("large")]);
show("collections", [
  await client.hSet("h", { a: "1", b: "", c: "3" }), await client.hGetAll("h"), await client.hmGet("h", ["a", "none"]),
  await client.rPush("l", ["x", "y", "x"]), await client.lRange("l", 0, -1), await client.lRem("l", 0, "x"),
  await client.zAdd("z", [{ score: 1.5, value: "m" }, { score: 2, value: "n" }]),
  await client.zRangeWithScores("z", 0, -1), await client.zScore("z", "o"),
  await client.sAdd("s", ["b", "a"]), [...(await client.sMembers("s"))].sort(),
  await client.smIsMember("s", ["a", "c"]),
]);
show("refusals", [
  await refused(client.lPush("s", "x")), await refused(client.sendCommand(["NOSUCH", "a"])),
  await refused(client.get("s")),
  await refused(client.sendCommand(["EXPIREMEMBERS", "s"])), await refused(client.incr("plain")),
]);

for (let number = 0; number < 9; number++) await client.hSet(`many${number}`, "f", "1");
const many = await Promise.all([...Array(12).keys()].map(async () => {
  const one = await open();
  const replies = await Promise.all([...Array(400).keys()].map((number) => {
    const key = `many${number % 9}`;
    return [() => one.hSet(key, `f${number}`, number), () => one.hGet(key, `g${number}`), () => one.get("plain"),
      () => refused(one.get(key)), () => one.mGet(["n", "none"])][number % 5]();
  }));
  one.destroy();
  return replies.filter((_, number) => number % 5);
}));
show("many", digest(many));

const pool = await createClientPool(options, { minimum: 2, maximum: 5 }).connect();
const increments = [...Array(300).keys()].map((number) => pool.execute((one) => one.incrBy(`pool${number % 5}`, 1)));
const counts = async () => Promise.all([0, 1, 2, 3, 4].map((number) => pool.get(`pool${number}`)));
show("pool", [(await Promise.all(increments)).length, await counts()]);
await pool.close();

show("transaction", await refused(client.multi().sAdd("t", "1").sAdd("t", "1").sCard("t").exec().then(JSON.stringify)));
show("transaction refused", await refused(client.multi().sAdd("t", "1").lPush("t", "1").exec()));
const other = await open({ database: 3 });
await client.watch("watched");
await (await open()).set("watched", "changed");
show("watch", [await refused(client.multi().get("watched").exec()), await client.multi().get("watched").exec()]);
show("pipeline", await client.multi().set("p", "1").incr("p").get("p").execAsPipeline());

show("script", [await client.both("counted", "a"), await client.both("counted", "b")]);
await client.scriptFlush();
show("script again", await client.both("counted", "c"));

const subscriber = await open();
const heard = [];
await subscriber.subscribe("news", (text, channel) => heard.push([channel, text]));
await subscriber.pSubscribe("n*", (text, channel) => heard.push([channel, text]));
show("publish", await client.publish("news", "hello"));
while (heard.length < 2) await sleep(2);
await subscriber.unsubscribe("news"); // (without a name it waits for the pattern's end too)
await subscriber.pUnsubscribe("n*");
show("heard", [heard, await subscriber.get("plain")]);

const waiter = await open();
const waited = waiter.blPop("jobs", 20);
while (!(await client.sendCommand(["CLIENT", "LIST"])).includes("cmd=blpop")) await sleep(2);
await client.rPush("jobs", ["first", "second"]);
show("blocking", [await waited, await waiter.blPop("jobs", 1), await waiter.brPop("jobs", 0.05)]);

const found = [];
for await (const keys of client.scanIterator({ MATCH: "pool*", COUNT: 7 })) found.push(...keys);
show("scan", [...new Set(found)].sort());
show("database", [await other.set("plain", "3"), await other.dbSize(), await client.get("plain")]);

await client.xGroupCreate("stream", "group", "$", { MKSTREAM: true });
await client.xAdd("stream", "1-1", { field: "value" });
show("stream", await client.xReadGroup("group", "me", { key: "stream", id: ">" }, { COUNT: 1 }));

await client.sendCommand(["CLIENT", "KILL", "ID", String(await other.clientId())]);
while ((await refused(other.ping())) !== "taken") await sleep(2);
show("again", [await other.get("plain"), await other.dbSize()]);

if (RESP === 3) {
  const caching = await open({ clientSideCache: { ttl: 0, maxEntries: 0, evictPolicy: "LRU" } });
  const seen = [await caching.get("plain"), await caching.hGetAll("h"), await caching.get("plain")];
  await client.set("plain", "new");
  while ((await caching.get("plain")) !== "new") await sleep(2);
  await client.hSet("h", "a", "2");
  while ((await caching.hGetAll("h")).a !== "2") await sleep(2);
  show("cached", seen);
}

// Members with deadlines, if the server has them.
if ((await refused(client.sendCommand(["EXPIREMEMBER", "none", "m", "1"]))) === "taken") {
  const cached = RESP === 3 ? await open({ clientSideCache: { ttl: 0, maxEntries: 0, evictPolicy: "LRU" } }) : client;
  await client.sAdd("cart", ["apple", "pear", "plum"]);
  const before = [...(await cached.sMembers("cart"))].sort();
  const set = await client.multi().addCommand(["PEXPIREMEMBER", "cart", "apple", "60"])
    .addCommand(["EXPIREMEMBER", "cart", "pear", "100"]).addCommand(["TTL", "cart", "pear"])
    .addCommand(["PERSIST", "cart", "pear"]).addCommand(["PTTL", "cart", "pear"]).exec();
  while ((await cached.sMembers("cart")).length === 3) await sleep(2);
  console.log("members", JSON.stringify([before, set, [...(await cached.sMembers("cart"))].sort()]));
}
process.exit(0);
