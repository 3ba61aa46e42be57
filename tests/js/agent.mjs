// Agents of the AI SDK: a job is a line of stdin, its outcome a line of stdout (clients/framework_runs).
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { createOpenAI } from "@ai-sdk/openai";

const MOST_STEPS = 5;
const THINKING_TOKENS = 2048;

const MODELS = {
  anthropic: (job) => createAnthropic({ apiKey: "k", baseURL: `${job.url}/v1` })(job.model),
  "openai-responses": (job) => createOpenAI({ apiKey: "k", baseURL: `${job.url}/v1` })(job.model),
  "openai-chat": (job) => createOpenAI({ apiKey: "k", baseURL: `${job.url}/v1` }).chat(job.model),
  gemini: (job) => createGoogleGenerativeAI({ apiKey: "k", baseURL: `${job.url}/v1beta` })(job.model),
};
// Reasoning where the API has it.
const OPTIONS = {
  anthropic: { anthropic: { thinking: { type: "enabled", budgetTokens: THINKING_TOKENS } } },
  "openai-responses": {
    openai: { store: false, include: ["reasoning.encrypted_content"], reasoningSummary: "auto" },
  },
  gemini: { google: { thinkingConfig: { includeThoughts: true } } },
};

async function outcomeOf(job) {
  const ai = await import(job.version.startsWith("6.") ? "ai" : "ai-v7");
  const outcome = { text: "", calls: [], messages: [], error: "" };
  const inputSchema = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
  const read_file = ai.tool({
    description: "Read a file.",
    inputSchema: ai.jsonSchema(inputSchema),
    execute: async ({ path }) => {
      outcome.calls.push(path);
      return await readFile(path, "utf8");
    },
  });
  const image = job.image ? [{ type: "file", data: job.image, mediaType: "image/png" }] : [];
  const messages = [...job.messages, { role: "user", content: [{ type: "text", text: job.prompt }, ...image] }];
  try {
    const result = ai.streamText({
      model: MODELS[job.target](job),
      messages,
      tools: { read_file },
      stopWhen: ai.stepCountIs(MOST_STEPS),
      providerOptions: OPTIONS[job.target],
      topP: job.parameters.top_p,
      onError: () => {},
    });
    for await (const part of result.fullStream) {
      if (part.type === "text-delta") outcome.text += part.text;
      if (part.type === "error") throw part.error;
    }
    // Version 6 has the messages of all steps in its response.
    const added = (await result.responseMessages) ?? (await result.response).messages;
    outcome.messages = [...messages, ...added];
  } catch (error) {
    // The provider's error event is an object.
    outcome.error = error instanceof Error ? `${error.name}: ${error.message}` : `Error: ${JSON.stringify(error)}`;
  }
  return outcome;
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await outcomeOf(JSON.parse(line)))}\n`);
}
