// Asks a gateway with the npm clients `openai` and `@ai-sdk/openai-compatible`, and prints what they got as JSON.
import OpenAI from "openai";
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

const provider = createOpenAICompatible({ name: "fairlead", baseURL, apiKey: "any" });
got.generated = (await generateText({ model: provider("llama"), prompt: "Hello", maxRetries: 0 })).text;
got.streamed = "";
for await (const part of streamText({ model: provider("llama"), prompt: "Hello", maxRetries: 0 }).textStream) {
  got.streamed += part;
}
console.log(JSON.stringify(got));
