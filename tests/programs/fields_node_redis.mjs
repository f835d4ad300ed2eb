// What the methods of node-redis for lifetimes of fields get from servers, a line each: node fields_node_redis.mjs PORT …
import { createClient } from "redis";

for (const port of process.argv.slice(2)) {
  const client = await createClient({ url: `redis://127.0.0.1:${port}`, RESP: 3 }).connect();
  await client.flushAll();
  await client.hSet("h", { a: "1", b: "2", c: "3" });
  console.log(JSON.stringify([
    await client.hExpire("h", ["a", "none"], 5000), await client.hExpire("h", "a", 5000, "NX"),
    await client.hpExpireAt("h", "b", 4_000_000_000_001), await client.hTTL("h", ["a", "c"]),
    await client.hpExpireTime("h", "b"), await client.hExpireTime("h", "b"), await client.hPersist("h", ["a", "c"]),
    await client.hSetEx("h", { d: "4" }, { expiration: { type: "EX", value: 7000 }, mode: "FNX" }),
    await client.hTTL("h", "d"), await client.hGetEx("h", ["d", "none"], { expiration: "PERSIST" }),
    await client.hTTL("h", "d"), await client.hGetDel("h", ["d", "none"]), await client.hExpire("h", "a", 0),
    await client.hGetAll("h"), await client.multi().hSet("h", "b", "5").hTTL("h", "b").exec(),
    await client.hTTL("h", []).catch((error) => error.message),
  ]));
  client.destroy();
}
