// Uses a gateway with the npm client `@fal-ai/client` through its `proxyUrl` and with the provider `@ai-sdk/fal`, and
// prints what it got as JSON.
import { createFal } from "@ai-sdk/fal";
import { fal } from "@fal-ai/client";

const [url, credentials] = process.argv.slice(2);
fal.config({ proxyUrl: { url, when: "always" }, credentials, suppressLocalCredentialsWarning: true });
const input = { prompt: "a harbour" };
const got = {};

const kinds = new Set();
const note = (update) => kinds.add(update.status);
const polled = await fal.subscribe("acme/flux/dev", { input, logs: true, onQueueUpdate: note });
got.polled = polled.data;
got.requestId = polled.requestId.length;

let last;
const streamed = await fal.subscribe("acme/flux", {
  input, mode: "streaming", logs: true, onQueueUpdate: (update) => { note(update); last = update; },
});
got.streamed = streamed.data;
got.kinds = [...kinds].sort();
got.last = [last.status, Array.isArray(last.logs), typeof last.metrics.inference_time];

const submitted = await fal.queue.submit("acme/echo", { input, priority: "low" });
got.position = submitted.queue_position;
await fal.queue.subscribeToStatus("acme/echo", { requestId: submitted.request_id });
got.result = (await fal.queue.result("acme/echo", { requestId: submitted.request_id })).data;
try {
  await fal.queue.cancel("acme/echo", { requestId: submitted.request_id });
} catch (error) {
  got.late = [error.status, error.body.status];
}

got.run = (await fal.run("acme/echo", { input })).data;
got.events = [];
const stream = await fal.stream("acme/improve", { input });
for await (const event of stream) got.events.push(event);
got.done = await stream.done();

const file = await fal.storage.upload(new File(["cat"], "cat.txt", { type: "text/plain" }));
got.file = await (await fetch(file)).text();
const given = await fal.run("acme/echo", { input: { image: new Blob(["dog"], { type: "text/plain" }) } });
got.given = await (await fetch(given.data.echo.image)).text();
const large = new Blob([new Uint8Array(95 * 1024 * 1024).fill(7)], { type: "application/octet-stream" });
got.large = (await (await fetch(await fal.storage.upload(large))).arrayBuffer()).byteLength;

for (const [name, app] of [["invalid", "acme/picky"], ["unknown", "acme/unknown"]]) {
  try {
    await fal.run(app, { input });
  } catch (error) {
    got[name] = [error.name, error.status, error.message.slice(0, 20), error.name === "ValidationError" ? error.fieldErrors : null];
  }
}

const provider = createFal({ apiKey: credentials, baseURL: url.replace("/proxy", "/run") });
const asked = { prompt: "a harbour", n: 1, providerOptions: {} };
const painted = await provider.image("acme/draw").doGenerate(asked);
got.painted = [[...painted.images[0]], painted.providerMetadata.fal.images[0].contentType];
try {
  await provider.image("acme/picky").doGenerate(asked);
} catch (error) {
  got.picky = [error.name, error.statusCode, error.message, error.isRetryable];
}

const refused = await fetch(url, {
  method: "POST", headers: { "x-fal-target-url": "https://169.254.169.254/latest", authorization: `Key ${credentials}` },
});
got.refused = refused.status;
console.log(JSON.stringify(got));
