// Send requests, each an argument in JSON, to a cluster with a node at PORT; print the replies.
import { createCluster } from "redis";

const [port, ...lines] = process.argv.slice(2);
const cluster = await createCluster({ rootNodes: [{ url: `redis://127.0.0.1:${port}` }] }).connect();
const replies = [];
for (const line of lines) {
  const request = JSON.parse(line);
  replies.push(await cluster.sendCommand(request[1], false, request));
}
console.log(JSON.stringify(replies));
await cluster.destroy();
