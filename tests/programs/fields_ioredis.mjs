// What the methods of ioredis for lifetimes of fields get from servers, a line each: node fields_ioredis.mjs PORT …
import { Redis } from "ioredis";

for (const port of process.argv.slice(2).map(Number)) {
  const client = new Redis({ host: "127.0.0.1", port });
  await client.flushall();
  await client.hset("h", { a: "1", b: "2", c: "3" });
  console.log(JSON.stringify([
    await client.hexpire("h", 5000, "FIELDS", 2, "a", "none"), await client.hexpire("h", 5000, "NX", "FIELDS", 1, "a"),
    await client.hpexpireat("h", 4_000_000_000_001, "FIELDS", 1, "b"), await client.httl("h", "FIELDS", 2, "a", "c"),
    await client.hpexpiretime("h", "FIELDS", 1, "b"), await client.hexpiretime("h", "FIELDS", 1, "b"),
    await client.hpersist("h", "FIELDS", 2, "a", "c"),
    await client.hsetex("h", "FNX", "EX", 7000, "FIELDS", 1, "d", "4"), await client.httl("h", "FIELDS", 1, "d"),
    await client.hgetex("h", "PERSIST", "FIELDS", 2, "d", "none"), await client.httl("h", "FIELDS", 1, "d"),
    await client.hgetdel("h", "FIELDS", 2, "d", "none"), await client.hexpire("h", 0, "FIELDS", 1, "a"),
    await client.hgetall("h"), await client.multi().hset("h", "b", "5").httl("h", "FIELDS", 1, "b").exec(),
    await client.httl("h").catch((error) => error.message),
  ]));
  client.disconnect();
}
