// A session with the client of the AI SDK: useChat with its default transport.
import { useEffect, useMemo, useRef } from "react";
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";
import { addressOf } from "./address.js";
import { Conversation } from "./conversation.jsx";
import { imageOf, ownImage } from "./images.js";

const RETRY_MS = 1000;
const RENDER_MS = 50;
// Changes of earlier messages. The chunks of a stream cannot change those, so the page loads them.
const LATE = new Set(["data-reknit-changed", "data-reknit-result"]);

export function AiSdkSession({ session }) {
  const { messages, connection } = useSession(session);
  const loaded = new Set(messages.map((message) => message.id));
  const blocks = messages.flatMap((message) => blocksOf(message, loaded));
  return <Conversation title="AI SDK" client="useChat" connection={connection} blocks={blocks} />;
}

function useSession({ server, id, headers }) {
  const address = addressOf({ server, id });
  const transport = useMemo(
    () =>
      new DefaultChatTransport({
        api: `${server}/sessions`,
        headers,
        // `/stream` has one answer; this address continues with the next answers.
        prepareReconnectToStreamRequest: () => ({ api: `${address}/events?as=ai-sdk`, headers }),
      }),
    [server, address, headers],
  );
  // The throttle keeps the page from drawing a message that is half rebuilt.
  const { messages, setMessages, status, error, resumeStream } = useChat({ id, transport, resume: true, throttle: RENDER_MS });

  // The SDK connects again when the page becomes visible; while it is visible, the page does it. The status is the same
  // after a second failure, but the error is another one.
  useEffect(() => {
    if (status !== "error") return undefined;
    const timer = setTimeout(resumeStream, RETRY_MS);
    return () => clearTimeout(timer);
  }, [status, error, resumeStream]);

  // The stream has the last answer. All that is before it is loaded whenever an answer begins or an earlier one changes.
  const last = messages.at(-1);
  const version = `${last?.id} ${last?.parts.filter((part) => LATE.has(part.type)).length}`;
  useEffect(() => {
    const stop = new AbortController();
    loadedFrom(`${address}/messages`, { headers, signal: stop.signal }).then(
      (loaded) => setMessages((shown) => before(loaded, shown)),
      () => {}, // the stream fails as well, and the connection's state shows it
    );
    return () => stop.abort();
  }, [address, headers, version, setMessages]);

  return { messages, connection: useConnection(status, error) };
}

async function loadedFrom(url, options) {
  const answer = await fetch(url, options);
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return answer.json();
}

// The last answer stays: the stream writes to it.
function before(loaded, shown) {
  const last = shown.at(-1);
  if (last?.role !== "assistant") return loaded;
  const at = loaded.findIndex((message) => message.id === last.id);
  return [...(at < 0 ? loaded : loaded.slice(0, at)), last];
}

function useConnection(status, error) {
  const wasLive = useRef(false);
  if (status === "streaming") {
    wasLive.current = true;
    return { state: "live" };
  }
  if (error && !(error instanceof TypeError)) return { state: "refused", reason: error.message };
  return { state: wasLive.current ? "reconnecting" : "connecting" };
}

function blocksOf(message, loaded) {
  if (message.role === "user") return [{ kind: "user", id: message.id, ...wordsOf(message.parts), facts: {} }];
  return message.parts.flatMap((part, at) => blockOf(part, `${message.id}/${at}`, loaded) ?? []);
}

function blockOf(part, place, loaded) {
  const facts = { ...part.callProviderMetadata?.reknit, ...(part.resultProviderMetadata ?? part.providerMetadata)?.reknit };
  const common = { id: facts.itemId ?? part.id ?? place, facts, parent: facts.parent };
  switch (part.type) {
    case "text":
      return { ...common, kind: "text", text: part.text };
    case "reasoning":
      return { ...common, kind: "thinking", text: part.text };
    case "dynamic-tool":
      return { ...common, kind: "call", id: part.toolCallId, name: part.toolName, input: inputOf(part), results: resultsOf(part, facts) };
    case "source-url":
      return { ...common, kind: "source", id: part.sourceId, url: part.url, text: part.title ?? part.url };
    case "data-reknit-notice":
      return { ...common, kind: "notice", label: "notice", text: noticeOf(part.data) };
    case "data-reknit-error":
      return { ...common, kind: "notice", label: "error", text: noticeOf(part.data) };
    case "data-reknit-block":
      return { ...common, kind: "notice", label: part.data.type, text: JSON.stringify(part.data.raw) };
    case "data-reknit-user":
      // Words that came in the middle of an answer are in no message before it.
      return loaded.has(part.id) ? undefined : { ...common, kind: "user", text: part.data.text };
    default:
      return undefined; // late changes are in the messages that the page loads
  }
}

function inputOf(part) {
  const input = part.state === "input-streaming" ? (part.rawInput ?? part.input) : part.input;
  return typeof input === "string" ? input : JSON.stringify(input ?? {});
}

function resultsOf(part, facts) {
  const id = `${part.toolCallId}:result`;
  if (part.state === "output-available") return [{ id, ...readable(part.output), isError: false }];
  // A call that was cut off has an error in place of its input.
  if (part.state === "output-error" && !facts.incomplete) return [{ id, text: part.errorText, images: [], isError: true }];
  return [];
}

function readable(output) {
  if (typeof output === "string") return { text: output, images: [] };
  if (!Array.isArray(output)) return { text: JSON.stringify(output), images: [] };
  const images = output.filter((block) => block?.type === "image" && block.source?.type === "base64");
  return {
    text: output.filter((block) => !images.includes(block)).map((block) => block?.text ?? JSON.stringify(block)).join("\n"),
    images: images.map(({ source }) => imageOf(source.media_type, source.data)),
  };
}

function wordsOf(parts) {
  return {
    text: parts.filter((part) => part.type === "text").map((part) => part.text).join("\n"),
    images: parts.filter((part) => part.type === "file").map((part) => ownImage(part.url)),
  };
}

function noticeOf({ message, reason, ...data }) {
  return message ?? reason ?? JSON.stringify(data);
}
