// Send requests, each an argument in JSON, to a cluster with a node at PORT; print the replies.
import { Redis } from "ioredis";

const [port, ...lines] = process.argv.slice(2);
const cluster = new Redis.Cluster([{ host: "127.0.0.1", port: Number(port) }]);
const replies = [];
for (const line of lines) {
  const [name, ...args] = JSON.parse(line);
  replies.push(await cluster.call(name, ...args));
}
console.log(JSON.stringify(replies));
cluster.disconnect();
