// The npm package `replicate`, unmodified: run, wait, stream, files, pages, cancelling, errors, webhooks.
import fs from "node:fs";
import Replicate, { validateWebhook } from "replicate";

const [, , url, hook, secure] = process.argv;
const replicate = new Replicate({ baseUrl: url, auth: "any" });
const out = {};

const seen = [];
out.run = await replicate.run("acme/many", { input: {} }, (prediction) => seen.push(prediction.status));
out.seen = [seen[0], seen.at(-1)];
const { id } = (await replicate.models.versions.list("acme", "many")).results[0];
out.version = await replicate.run(`acme/many:${id}`, { input: {}, wait: { mode: "poll", interval: 50 } });

const file = new File([fs.readFileSync("picture.png")], "picture.png", { type: "image/png" });
const drawn = await replicate.run("acme/flux", { input: { image: file, prompt: "!" } });
out.drawn = Buffer.from(await (await fetch(drawn)).arrayBuffer()).toString("latin1").slice(-1);
const inline = new Replicate({ baseUrl: url, auth: "any", fileEncodingStrategy: "data-uri" });
// 1.4.0 passes the client in place of the input with this strategy, so the URI is made here.
const uri = `data:image/png;base64,${fs.readFileSync("picture.png").toString("base64")}`;
out.inline = typeof (await inline.run("acme/flux", { input: { image: uri }, wait: { mode: "poll", interval: 50 } }));

let text = "";
const kinds = new Set();
for await (const event of replicate.stream("acme/llama", { input: {} })) {
  kinds.add(event.event);
  text += `${event}`;
}
out.stream = [text, [...kinds]];

const waiting = await replicate.predictions.create({ model: "acme/wait", input: {} });
out.canceled = (await replicate.predictions.cancel(waiting.id)).status;
out.waited = (await replicate.wait(waiting, { interval: 50 })).status;
try {
  await replicate.run("acme/broken", { input: {} });
} catch (error) {
  out.failed = error.message;
}
try {
  await replicate.run("acme/nothing", { input: {} });
} catch (error) {
  out.unknown = [error.name, error.response.status];
}
let listed = 0;
for await (const page of replicate.paginate(replicate.predictions.list)) listed += page.length;
out.listed = listed;

await replicate.run("acme/many", { input: {}, webhook: hook, webhook_events_filter: ["completed"] });
const { key } = await replicate.webhooks.default.secret.get();
while (!fs.existsSync("delivery.json")) await new Promise((done) => setTimeout(done, 20));
const delivery = JSON.parse(fs.readFileSync("delivery.json"));
out.webhook = [
  await validateWebhook({ ...delivery, secret: key }),
  await validateWebhook({ ...delivery, secret: key, body: `${delivery.body} ` }),
  JSON.parse(delivery.body).output,
];

if (secure) {
  const tls = new Replicate({ baseUrl: secure, auth: "any" });
  const output = await tls.run("acme/draw", { input: { prompt: "!" } });
  out.output = [output.constructor.name, Buffer.from(await (await output.blob()).arrayBuffer()).toString("latin1")];
}
console.log(JSON.stringify(out));
