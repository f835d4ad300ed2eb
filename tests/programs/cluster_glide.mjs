// Send requests, each an argument in JSON, to a cluster with a node at PORT; print the replies.
import { GlideClusterClient, Logger } from "@valkey/valkey-glide";

Logger.setLoggerConfig("off");
const [port, ...lines] = process.argv.slice(2);
const addresses = [{ host: "127.0.0.1", port: Number(port) }];
const cluster = await GlideClusterClient.createClient({ addresses, requestTimeout: 20_000 });
const replies = [];
for (const line of lines) replies.push(await cluster.customCommand(JSON.parse(line)));
console.log(JSON.stringify(replies));
cluster.close();
