// A session with the client of AG-UI: HttpAgent, and the loop that connects it again.
import { useEffect, useState } from "react";
import { HttpAgent } from "@ag-ui/client";
import { runToEnd } from "reknit/screens";
import { addressOf } from "./address.js";
import { Conversation } from "./conversation.jsx";
import { imageOf } from "./images.js";

const RETRY_MS = 1000;

export function AgUiSession({ session }) {
  const { messages, connection } = useSession(session);
  return <Conversation title="AG-UI" client="HttpAgent" connection={connection} blocks={blocksOf(messages)} />;
}

function useSession({ server, id, headers }) {
  const [messages, setMessages] = useState([]);
  const [connection, setConnection] = useState({ state: "connecting" });

  useEffect(() => {
    const stop = new AbortController();
    // `follow`: the response continues with the next answers.
    const url = `${addressOf({ server, id })}/events?follow`;
    const agent = new HttpAgent({ url, threadId: id, headers });
    agent.subscribe({
      onMessagesChanged: ({ messages: found }) => setMessages([...found]),
      onRunStartedEvent: () => setConnection({ state: "live" }),
    });
    const onRetry = () => setConnection({ state: "reconnecting" });
    (async () => {
      while (!stop.signal.aborted) {
        try {
          await runToEnd(agent, { watch: true, signal: stop.signal, onRetry });
          onRetry();
        } catch (error) {
          // The server refused: the token has expired, or there is no such session yet.
          setConnection({ state: "refused", reason: error.message });
        }
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    })();
    return () => {
      stop.abort();
      agent.abortRun();
    };
  }, [server, id, headers]);

  return { messages, connection };
}

// What to show of the messages: results are in the card of their call.
function blocksOf(messages) {
  const results = Map.groupBy(
    messages.filter((message) => message.role === "tool"),
    (message) => message.toolCallId,
  );
  return messages.flatMap((message) => {
    const { id, role, content, toolCalls = [], metadata, subagentRunId: parent } = message;
    const facts = metadata?.reknit ?? {};
    switch (role) {
      case "user":
        return [{ kind: "user", id, ...readable(content), facts, parent }];
      case "reasoning":
        return [{ kind: "thinking", id, text: content, facts, parent }];
      case "activity":
        return [activity(message)];
      case "assistant":
        return [
          ...(content === undefined ? [] : [{ kind: "text", id, text: content, facts, parent }]),
          ...toolCalls.map((call) => cardOf(call, results.get(call.id) ?? [], parent)),
        ];
      default:
        return [];
    }
  });
}

function cardOf(call, results, parent) {
  return {
    kind: "call",
    id: call.id,
    name: call.function.name,
    input: call.function.arguments,
    results: results.map((result) => ({
      id: result.id,
      ...readable(result.content),
      isError: result.metadata?.reknit?.isError === true,
    })),
    facts: call.metadata?.reknit ?? {},
    parent,
  };
}

function activity({ id, activityType, content }) {
  const text = typeof content.message === "string" ? content.message : JSON.stringify(content);
  const label = activityType === "reknit.agent_error" ? "notice" : activityType.replace(/^reknit\./, "");
  return { kind: "notice", id, label, text };
}

function readable(content) {
  if (typeof content === "string") return { text: content, images: [] };
  const text = content.filter((part) => part.type === "text").map((part) => part.text).join("\n");
  const images = content.filter((part) => part.type === "image" && part.source.type === "data");
  return { text, images: images.map(({ source }) => imageOf(source.mimeType, source.value)) };
}
