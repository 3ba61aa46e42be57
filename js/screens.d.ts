export interface RunToEndOptions {
  /** Parameters of `runAgent`. */
  parameters?: Record<string, unknown>;
  /** Only show the session: the server takes no message of the agent for a new one. */
  watch?: boolean;
  /** Ends the loop. */
  signal?: AbortSignal;
  /** Milliseconds before the second attempt; they double. Default 500. */
  firstDelay?: number;
  /** The longest pause in milliseconds. Default 10,000. */
  longestDelay?: number;
  /** Called before each further attempt. */
  onRetry?: (error: unknown, attempt: number) => void;
}

/** Runs an `HttpAgent` of @ag-ui/client until the answer has ended, through any number of broken connections. */
export function runToEnd(
  agent: { runAgent(parameters?: any, subscriber?: any): Promise<unknown> },
  options?: RunToEndOptions,
): Promise<"finished" | "error" | "aborted">;
