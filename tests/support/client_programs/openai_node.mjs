// The official Node client: models, chat and text, streamed and not, usage, errors, a stream that is aborted.
import assert from "node:assert";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import path from "node:path";

const [url, model, home] = process.argv.slice(2);
const require = createRequire(path.join(home, "package.json"));
const { default: OpenAI, NotFoundError, BadRequestError } = require("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0 });
const wish = { model, messages: [{ role: "user", content: "Say something." }], max_tokens: 8, temperature: 0 };

const listed = [];
for await (const one of client.models.list()) listed.push(one.id);
assert.deepStrictEqual(listed, [model]);
const whole = await client.chat.completions.create(wish);
assert(whole.usage.completion_tokens > 0);
let text = "";
let usage = null;
for await (const event of await client.chat.completions.create({ ...wish, stream: true, stream_options: { include_usage: true } })) {
  text += event.choices[0]?.delta?.content ?? "";
  usage = event.usage ?? usage;
}
assert.strictEqual(text, whole.choices[0].message.content);
assert.strictEqual(usage.completion_tokens, whole.usage.completion_tokens);
const completion = await client.completions.create({ model, prompt: "One", max_tokens: 4 });
assert(completion.choices[0].text.length > 0);
await assert.rejects(client.chat.completions.create({ ...wish, model: "nobody" }), NotFoundError);
await assert.rejects(client.chat.completions.create({ ...wish, max_tokens: -1 }), BadRequestError);
const left = await client.chat.completions.create({ ...wish, max_tokens: 200, stream: true });
for await (const event of left) {
  assert(event.id);
  left.controller.abort();
  break;
}
const about = JSON.parse(readFileSync(path.join(home, "node_modules/openai/package.json"), "utf8"));
console.log("version", about.version);
