// Asks a gateway with the npm clients `openai` and `@ai-sdk/openai-compatible`, and prints what they got as JSON.
import OpenAI, { toFile } from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const baseURL = process.argv[2];
const messages = [{ role: "user", content: "Hello" }];
const client = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });
const got = {};

got.models = [];
for await (const model of client.models.list()) got.models.push(model.id);

const { data, response } = await client.chat.completions.create({ model: "llama", messages, user: "ada" }).withResponse();
got.chat = data.choices[0].message.content;
got.job = response.headers.get("x-fairlead-job");

got.stream = "";
for await (const chunk of await client.chat.completions.create({ model: "llama", messages, stream: true })) {
  got.stream += chunk.choices[0].delta.content ?? "";
}

got.embedding = (await client.embeddings.create({ model: "llama", input: "Hi" })).data[0].embedding;
got.response = (await client.responses.create({ model: "llama", input: "Hi" })).output_text;

try {
  await client.chat.completions.create({ model: "gpt-5", messages });
} catch (error) {
  got.unknown = [error.constructor.name, error.status, error.code];
}

let waiting = await client.responses.create({ model: "llama", input: "Hi", background: true });
got.background = [waiting.status];
while (["queued", "in_progress"].includes(waiting.status)) waiting = await client.responses.retrieve(waiting.id);
got.background.push(waiting.status, waiting.output_text);

// A stream that is cut after its first events, and resumed.
const numbers = [];
let id, last, text = "";
const read = async (events, most) => {
  for await (const event of events) {
    id ??= event.response.id;
    last = event.sequence_number;
    numbers.push(last);
    if (event.type === "response.output_text.delta") text += event.delta;
    if (event.type === "response.output_text.delta" && most) break;
  }
};
await read(await client.responses.create({ model: "llama", input: "Hi", background: true, stream: true }), true);
await read(await client.responses.retrieve(id, { stream: true, starting_after: last }));
got.resumed = [text, numbers.every((number, index) => number === index)];
got.cancelled = (await client.responses.cancel(id)).status;
await client.responses.delete(id);

const image = (await client.images.generate({ model: "llama", prompt: "a cat", response_format: "url" })).data[0];
got.image = await (await fetch(image.url)).text();

const request = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body: { model: "llama", messages } };
const file = await client.files.create({
  file: await toFile(Buffer.from(JSON.stringify(request) + "\n"), "requests.jsonl"),
  purpose: "batch",
  expires_after: { anchor: "created_at", seconds: 3600 },
});
let batch = await client.batches.create({
  input_file_id: file.id,
  endpoint: "/v1/chat/completions",
  completion_window: "24h",
});
while (!["completed", "failed"].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 100));
  batch = await client.batches.retrieve(batch.id);
}
const output = JSON.parse(await (await client.files.content(batch.output_file_id)).text());
got.batch = [batch.status, batch.request_counts.completed, output.custom_id];
got.batched = output.response.body.choices[0].message.content;
got.files = [];
for await (const each of client.files.list({ order: "asc" })) got.files.push([each.purpose, each.filename.slice(-13)]);
got.expiry = file.expires_at - file.created_at;
got.deleted = (await client.files.delete(file.id)).deleted;

const provider = createOpenAICompatible({ name: "fairlead", baseURL, apiKey: "any" });
got.generated = (await generateText({ model: provider("llama"), prompt: "Hello", maxRetries: 0 })).text;
got.streamed = "";
for await (const part of streamText({ model: provider("llama"), prompt: "Hello", maxRetries: 0 }).textStream) {
  got.streamed += part;
}
console.log(JSON.stringify(got));
