// What the methods of Valkey GLIDE for lifetimes of fields get from servers, a line each: node fields_glide.mjs PORT …
import {
  Batch, GlideClient, HashExpirationCondition, HashFieldConditionalChange, Logger, TimeUnit,
} from "@valkey/valkey-glide";

Logger.setLoggerConfig("off");
for (const port of process.argv.slice(2).map(Number)) {
  const client = await GlideClient.createClient({ addresses: [{ host: "127.0.0.1", port }], requestTimeout: 20_000 });
  await client.flushall();
  await client.hset("h", { a: "1", b: "2", c: "3" });
  console.log(JSON.stringify([
    await client.hexpire("h", 5000, ["a", "none"]),
    await client.hexpire("h", 5000, ["a"], { condition: HashExpirationCondition.ONLY_IF_NO_EXPIRY }),
    await client.hpexpireat("h", 4_000_000_000_001, ["b"]), await client.httl("h", ["a", "c"]),
    await client.hpexpiretime("h", ["b"]), await client.hexpiretime("h", ["b"]), await client.hpersist("h", ["a", "c"]),
    await client.hsetex("h", { d: "4" }, {
      fieldConditionalChange: HashFieldConditionalChange.ONLY_IF_NONE_EXIST,
      expiry: { type: TimeUnit.Seconds, count: 7000 },
    }),
    await client.httl("h", ["d"]), await client.hgetex("h", ["d", "none"], { expiry: "PERSIST" }),
    await client.httl("h", ["d"]), await client.customCommand(["HGETDEL", "h", "FIELDS", "2", "d", "none"]),
    await client.hexpire("h", 0, ["a"]), await client.hgetall("h"),
    await client.exec(new Batch(true).hset("h", { b: "5" }).httl("h", ["b"]), true),
    await client.httl("h", []).catch((error) => error.message),
  ]));
  client.close();
}
