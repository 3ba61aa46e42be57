const DEFAULT_URL = "http://127.0.0.1:8787";
const DEFAULT_TIMEOUT = 2_000;

// The end of a path and its target, as in pipeline/serve/endpoints.py. Some paths name the model.
const ENDPOINTS = [
  [/\/messages$/, "anthropic"],
  [/\/publishers\/anthropic\/models\/([^/:]+):(streamR|r)awPredict$/, "anthropic"],
  [/\/model\/([^/]+)\/converse(-stream)?$/, "bedrock-converse"],
  [/\/model\/([^/]*anthropic[^/]*)\/invoke(-with-response-stream)?$/, "anthropic"],
  [/\/models\/([^/:]+):(streamG|g)enerateContent$/, "gemini"],
  [/\/chat\/completions$/, "openai-chat"],
  [/\/responses$/, "openai-responses"],
];
// Hosts and the target of chat requests to them; all other hosts are look-alikes.
const HOSTS = [
  [/(^|\.)(openai\.com|azure\.com)$/, "openai-chat"],
  [/(^|\.)mistral\.ai$/, "mistral"],
  [/(^|\.)deepseek\.com$/, "deepseek"],
  [/(^|\.)(moonshot\.(ai|cn)|kimi\.(com|ai))$/, "moonshot"],
];

export class MendError extends Error {
  constructor(code, message, path = "", options = {}) {
    super(message, options);
    this.name = "MendError";
    this.code = code;
    this.path = path;
  }
}

export async function mend(body, options) {
  return JSON.parse(await mendText(JSON.stringify(body), options));
}

/** Repair the JSON text of a body and return the JSON text of the result. */
async function mendText(body, { url = DEFAULT_URL, key, fetch = globalThis.fetch, timeout = DEFAULT_TIMEOUT, ...options }) {
  const { target, model, source, policy } = options;
  const rest = JSON.stringify({ target, model, source, policy }).slice(1);
  let response, text;
  try {
    response = await fetch(new URL("/mend", url), {
      method: "POST",
      headers: { "content-type": "application/json", ...(key && { "x-reknit-key": key }) },
      // The body's own text, so that numbers keep their digits.
      body: `{"body":${body},${rest}`,
      signal: AbortSignal.timeout(timeout),
    });
    text = await response.text();
  } catch (error) {
    throw new MendError("unreachable", `the gateway gave no answer: ${error.message}`, "", { cause: error });
  }
  if (response.ok) return text;
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // Not of the gateway: the status says all.
  }
  throw new MendError(error.code ?? "refused", error.message ?? `the gateway answered with ${response.status}`, error.path);
}

export function mendingFetch({ target, policy, onResult = () => {}, ...gateway } = {}) {
  const send = gateway.fetch ?? globalThis.fetch;
  return async function fetch(input, init) {
    const url = input instanceof Request ? input.url : String(input);
    const endpoint = endpointOf(url);
    // SDKs send requests to a model as text; bodies of other kinds are sent unchanged.
    if (endpoint === null || init?.method?.toUpperCase() !== "POST" || typeof init.body !== "string") {
      return send(input, init);
    }
    let body = init.body;
    try {
      const result = JSON.parse(await mendText(body, { ...gateway, ...endpoint, ...(target && { target }), policy }));
      if (result.changed && result.body !== null) body = JSON.stringify(result.body);
      onResult(result, url);
    } catch (error) {
      if (!(error instanceof MendError)) throw error;
      onResult(error, url);
    }
    return send(input, { ...init, body });
  };
}

/** Return the target of a URL and the model that it names; null if it takes no requests to a model. */
export function endpointOf(url) {
  const { pathname, hostname } = new URL(url);
  for (const [pattern, target] of ENDPOINTS) {
    const found = pattern.exec(pathname);
    if (!found) continue;
    const model = found[1] && decodeURIComponent(found[1]);
    if (target !== "openai-chat") return { target, model };
    const [, named] = HOSTS.find(([host]) => host.test(hostname)) ?? [null, "vllm"];
    return { target: named, model };
  }
  return null;
}
