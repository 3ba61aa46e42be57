// Sends a broken history with the JavaScript package. The argument is the gateway's URL, then the provider's; stdout has
// one line of JSON.
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";
import OpenAI from "openai";

import { MendError, mend, mendingFetch } from "../../js/index.js";

const [, , gateway, provider] = process.argv;
const call = { type: "tool_use", id: "toolu_1", name: "ls", input: {} };
const messages = [
  { role: "user", content: "hi" },
  { role: "assistant", content: [call] },
  { role: "user", content: "and?" },
];
const results = [];
const onResult = (result) => results.push(result instanceof MendError ? result.code : result.fixes.map((fix) => fix.code));
const fetch = mendingFetch({ url: gateway, onResult });

const anthropic = new Anthropic({ apiKey: "k", baseURL: provider, maxRetries: 0, fetch });
await anthropic.messages.create({ model: "claude-opus-4-7", max_tokens: 9, messages });
const called = { id: "c", type: "function", function: { name: "ls", arguments: "{}" } };
const openai = new OpenAI({ apiKey: "k", baseURL: `${provider}/v1`, maxRetries: 0, fetch });
await openai.chat.completions.create({
  model: "gpt-5",
  messages: [messages[0], { role: "assistant", content: null, tool_calls: [called] }, messages[2]],
});
await openai.models.list();
const sdk = createOpenAI({ apiKey: "k", baseURL: `${provider}/v1`, fetch });
await generateText({ model: sdk.chat("gpt-5"), prompt: "hi", maxRetries: 0 });
// A gateway that is down: the request is sent as it is, and the provider refuses it.
const down = new Anthropic({
  apiKey: "k",
  baseURL: provider,
  maxRetries: 0,
  fetch: mendingFetch({ url: "http://127.0.0.1:1", onResult }),
});
let refused = 0;
await down.messages.create({ model: "claude-opus-4-7", max_tokens: 9, messages }).catch((error) => {
  refused = error.status;
});
const { body, fixes } = await mend(messages, { url: gateway, target: "anthropic", model: "claude-opus-4-7" });
const wrong = await mend([], { url: gateway, target: "none" }).catch((error) => error.code);
process.stdout.write(JSON.stringify({ results, refused, wrong, roles: body.messages.map((each) => each.role), fixes: fixes.length }));
