// Reads streams with the JavaScript SDKs. Each line of stdin is {"client", "url"}; each line of stdout is the result:
// {"text", "arguments"} of a whole stream, or {"error"} with the name of what the SDK raised.
import { createInterface } from "node:readline";

import Anthropic from "@anthropic-ai/sdk";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { createOpenAI } from "@ai-sdk/openai";
import { GoogleGenAI } from "@google/genai";
import { jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";

const CALL = { type: "tool_use", id: "toolu_1", name: "ls", input: { path: "/srv" } };
// The call of each history has no result, which each provider refuses.
const ANTHROPIC = {
  model: "claude-opus-4-7",
  max_tokens: 64,
  messages: [
    { role: "user", content: "hi" },
    { role: "assistant", content: [CALL] },
    { role: "user", content: "and?" },
  ],
};
const CHAT = {
  model: "gpt-5",
  messages: [
    { role: "user", content: "hi" },
    {
      role: "assistant",
      content: null,
      tool_calls: [{ id: "call_1", type: "function", function: { name: "ls", arguments: "{}" } }],
    },
    { role: "user", content: "and?" },
  ],
};
const RESPONSES = {
  model: "gpt-5",
  store: false,
  input: [
    { role: "user", content: "hi" },
    { type: "function_call", call_id: "t1", name: "f", arguments: "{}" },
    { role: "user", content: "and?" },
  ],
};
const GEMINI = {
  model: "gemini-2.5-pro",
  contents: [
    { role: "user", parts: [{ text: "hi" }] },
    { role: "model", parts: [{ functionCall: { name: "ls", args: { path: "/srv" } } }] },
    { role: "user", parts: [{ text: "and?" }] },
  ],
};

const anthropic = (url) => new Anthropic({ apiKey: "k", baseURL: url, maxRetries: 0 });
const openai = (url) => new OpenAI({ apiKey: "k", baseURL: `${url}/v1`, maxRetries: 0 });

const CLIENTS = {
  "anthropic create": async (url) => {
    let [text, args] = ["", ""];
    for await (const event of await anthropic(url).messages.create({ ...ANTHROPIC, stream: true })) {
      text += event.delta?.text ?? "";
      args += event.delta?.partial_json ?? "";
    }
    return [text, args];
  },
  "anthropic stream": async (url) => {
    const message = await anthropic(url).messages.stream(ANTHROPIC).finalMessage();
    const of = (type) => message.content.filter((block) => block.type === type);
    return [of("text").map((block) => block.text).join(""), of("tool_use").map((block) => JSON.stringify(block.input)).join("")];
  },
  "openai chat": async (url) => {
    let [text, args] = ["", ""];
    for await (const chunk of await openai(url).chat.completions.create({ ...CHAT, stream: true })) {
      text += chunk.choices[0].delta.content ?? "";
      for (const call of chunk.choices[0].delta.tool_calls ?? []) args += call.function.arguments ?? "";
    }
    return [text, args];
  },
  "openai responses": async (url) => {
    let [text, args] = ["", ""];
    for await (const event of await openai(url).responses.create({ ...RESPONSES, stream: true })) {
      if (event.type === "response.output_text.delta") text += event.delta;
      if (event.type === "response.function_call_arguments.delta") args += event.delta;
      // The SDK raises for no event of this form: a program must look at the status.
      if (event.type === "response.failed") throw new OpenAI.OpenAIError(event.response.error.message);
    }
    return [text, args];
  },
  "google-genai": async (url) => {
    let [text, args] = ["", ""];
    const client = new GoogleGenAI({ apiKey: "k", httpOptions: { baseUrl: url } });
    for await (const chunk of await client.models.generateContentStream(GEMINI)) {
      for (const part of chunk.candidates[0].content.parts ?? []) {
        text += part.text ?? "";
        args += part.functionCall ? JSON.stringify(part.functionCall.args) : "";
      }
    }
    return [text, args];
  },
  "ai-sdk anthropic": (url) => aiSdk(createAnthropic({ apiKey: "k", baseURL: `${url}/v1` })("claude-opus-4-7")),
  "ai-sdk chat": (url) => aiSdk(createOpenAI({ apiKey: "k", baseURL: `${url}/v1` }).chat("gpt-5")),
  "ai-sdk responses": (url) => aiSdk(createOpenAI({ apiKey: "k", baseURL: `${url}/v1` })("gpt-5")),
  "ai-sdk google": (url) =>
    aiSdk(createGoogleGenerativeAI({ apiKey: "k", baseURL: `${url}/v1beta` })("gemini-2.5-pro")),
};

// The AI SDK gives the provider's error event as it is.
class StreamError extends Error {
  name = "StreamError";

  constructor(event) {
    super(JSON.stringify(event));
  }
}

// The AI SDK refuses a call without a result by itself, so its history has none.
async function aiSdk(model) {
  let [text, args] = ["", ""];
  const parameters = { inputSchema: jsonSchema({ type: "object" }) };
  const tools = { ls: tool(parameters), f: tool(parameters) };
  const stream = streamText({ model, tools, prompt: "hi", maxRetries: 0, onError: () => {} }).fullStream;
  for await (const part of stream) {
    if (part.type === "text-delta") text += part.text;
    if (part.type === "tool-call") args += JSON.stringify(part.input);
    if (part.type === "error") throw part.error instanceof Error ? part.error : new StreamError(part.error);
  }
  return [text, args];
}

for await (const line of createInterface({ input: process.stdin })) {
  const { client, url } = JSON.parse(line);
  let result;
  try {
    const [text, args] = await CLIENTS[client](url);
    result = { text, arguments: args };
  } catch (error) {
    result = { error: error.name === "Error" ? error.constructor.name : error.name, message: String(error.message) };
  }
  process.stdout.write(`${JSON.stringify(result)}\n`);
}
