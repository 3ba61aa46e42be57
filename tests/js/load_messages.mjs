// Loads messages of the AI SDK with its own functions: lines of {"to", "messages"} in, a line with the error or null out.
import { createInterface } from "node:readline";
import { convertToModelMessages, modelMessageSchema, safeValidateUIMessages } from "ai";

async function load({ to, messages }) {
  if (to === "ai-sdk-model") {
    messages.forEach((message) => modelMessageSchema.parse(message));
  } else if (messages.length > 0) {
    const found = await safeValidateUIMessages({ messages });
    if (!found.success) throw found.error;
    await convertToModelMessages(messages);
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  let error = null;
  try {
    await load(JSON.parse(line));
  } catch (caught) {
    error = String(caught.message ?? caught).slice(0, 500);
  }
  console.log(JSON.stringify(error));
}
