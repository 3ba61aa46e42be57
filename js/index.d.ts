/** One change of a history. `path` is its place in the provider's notation, `lossless` false where content is lost. */
export interface Fix {
  code: string;
  path: string;
  lossless: boolean;
  target?: string;
  detail?: string;
  before?: string;
  after?: string;
  id?: string;
  observed?: boolean;
}

/** A broken rule, in the provider's words. */
export interface Violation {
  rule: string;
  path: string;
  message: string;
  severity: "hard" | "model" | "soft";
}

/** The result of a repair. `body` is null if no repair makes it valid, and a string for targets that take a text. */
export interface MendResult<Body = unknown> {
  body: Body | string | null;
  changed: boolean;
  fixes: Fix[];
  violations: Violation[];
}

export interface Gateway {
  /** The base URL of `reknit serve`. Default: http://127.0.0.1:8787 */
  url?: string;
  /** The gateway's key, if it has one. */
  key?: string;
  /** Sends requests. Default: the global `fetch`. */
  fetch?: typeof globalThis.fetch;
  /** The most time for a repair, in milliseconds. Default: 2,000 */
  timeout?: number;
}

export interface MendOptions extends Gateway {
  target: string;
  model?: string;
  source?: string;
  policy?: Record<string, unknown>;
}

/** The gateway refused the request or gave no result. `code` is Reknit's, or "unreachable". */
export declare class MendError extends Error {
  readonly code: string;
  readonly path: string;
}

/** Repair a history or a request body. Rejects with a `MendError`. */
export declare function mend<Body = unknown>(body: unknown, options: MendOptions): Promise<MendResult<Body>>;

/** Return the target of a URL and the model that it names; null if it takes no requests to a model. */
export declare function endpointOf(url: string): { target: string; model?: string } | null;

export interface MendingFetchOptions extends Gateway {
  /** The target of requests to a model. Default: that of the URL (`endpointOf`). */
  target?: string;
  policy?: Record<string, unknown>;
  /** Called with each result, and with the error if a request was sent without repair. */
  onResult?: (result: MendResult | MendError, url: string) => void;
}

/**
 * Return a `fetch` that repairs the bodies of requests to a model before it sends them, for `createAnthropic({ fetch })`
 * of the AI SDK, `new Anthropic({ fetch })` and `new OpenAI({ fetch })`.
 *
 * A body that needs no repair is sent byte for byte. If the gateway gives no result, the body is sent as it is.
 */
export declare function mendingFetch(options?: MendingFetchOptions): typeof globalThis.fetch;
