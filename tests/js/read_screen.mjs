// Shows a session of `reknit screens` with an unmodified client: node read_screen.mjs ag-ui|ai-sdk URL SESSION [TEXT]
// It connects again after each broken answer, and prints the messages of the client in the end as JSON.
import { HttpAgent } from "@ag-ui/client";
import * as ai from "ai-v7";
import { runToEnd } from "../../js/screens.js";

const [, , protocol, url, session, text] = process.argv;
// HttpAgent cancels the reader of a broken body without a handler for its rejection.
process.on("unhandledRejection", () => {});
console.warn = console.error = () => {};

async function agUi() {
  const initialMessages = text ? [{ id: "m1", role: "user", content: text }] : [];
  const agent = new HttpAgent({ url: `${url}/sessions/${session}/events`, threadId: session, initialMessages });
  let attempts = 1;
  const onRetry = () => attempts++;
  const end = await runToEnd(agent, { watch: !text, firstDelay: 20, longestDelay: 100, onRetry });
  return { end, attempts, messages: agent.messages };
}

class Chat extends ai.AbstractChat {
  constructor(init) {
    const state = {
      status: "ready",
      error: undefined,
      messages: [],
      pushMessage: (message) => (state.messages = [...state.messages, message]),
      popMessage: () => (state.messages = state.messages.slice(0, -1)),
      replaceMessage: (at, message) => (state.messages = state.messages.map((each, n) => (n === at ? message : each))),
      snapshot: (value) => structuredClone(value),
    };
    super({ ...init, state });
  }
}

// A browser says "network error" where Node says "terminated"; the client resumes after the former only.
async function asInABrowser(input, init) {
  const answer = await fetch(input, init);
  if (!answer.body) return answer;
  const reader = answer.body.getReader();
  const body = new ReadableStream({
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (done) controller.close();
        else controller.enqueue(value);
      } catch {
        controller.error(new TypeError("network error"));
      }
    },
  });
  return new Response(body, { status: answer.status, headers: answer.headers });
}

async function aiSdk() {
  let error, finish, attempts = 0;
  const transport = new ai.DefaultChatTransport({ api: `${url}/sessions`, fetch: asInABrowser });
  const onFinish = (event) => (finish = event);
  const chat = new Chat({ id: session, transport, onError: (found) => (error = found), onFinish });
  do {
    error = undefined;
    if (attempts++ === 0 && text) await chat.sendMessage({ text });
    else await chat.resumeStream();
    if (error) await new Promise((resolve) => setTimeout(resolve, 20));
  } while (error && attempts < 200);
  return { end: finish?.finishReason, attempts, messages: chat.messages, error: error?.message };
}

const shown = await (protocol === "ag-ui" ? agUi() : aiSdk());
process.stdout.write(JSON.stringify(shown), () => process.exit(0));
