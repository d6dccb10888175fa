// The official library of Standard Webhooks reads a delivery. Arguments: secret, headers as JSON, body.
import { Webhook } from "standardwebhooks";

const [secret, headers, body] = process.argv.slice(2);
const webhook = new Webhook(secret);
let changed = "taken";
try {
  webhook.verify(body.replace("Hello", "Hullo"), JSON.parse(headers));
} catch {
  changed = "refused";
}
console.log(JSON.stringify({ type: webhook.verify(body, JSON.parse(headers)).type, changed }));
