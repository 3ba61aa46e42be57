// Reconnection for `HttpAgent` of @ag-ui/client, which has none: it takes a clean end of a broken answer for success, and
// it does not try again after a broken connection. The server is `reknit screens`.

const PASSING = new Set([408, 425, 429, 500, 502, 503, 504]);

/**
 * Runs an agent until the answer has ended, through any number of broken connections.
 *
 * @param {object} agent An `HttpAgent`. The address is that of `/sessions/ID/events`.
 * @param {object} [options]
 * @param {object} [options.parameters] Parameters of `runAgent`.
 * @param {boolean} [options.watch] Only show the session: the server takes no message of the agent for a new one.
 * @param {AbortSignal} [options.signal] Ends the loop.
 * @param {number} [options.firstDelay] Milliseconds before the second attempt; they double.
 * @param {number} [options.longestDelay] The longest pause in milliseconds.
 * @param {(error: unknown, attempt: number) => void} [options.onRetry] Called before each further attempt.
 * @returns {Promise<"finished" | "error" | "aborted">} How the answer ended.
 */
export async function runToEnd(agent, options = {}) {
  const { parameters = {}, watch = false, signal, firstDelay = 500, longestDelay = 10_000, onRetry } = options;
  for (let attempt = 0; ; attempt++) {
    const outcome = { end: undefined, error: undefined, received: false };
    try {
      await agent.runAgent(withMark(parameters, watch), subscriberOf(outcome));
    } catch (error) {
      outcome.error = error;
    }
    if (signal?.aborted) return "aborted";
    if (outcome.end !== undefined) return outcome.end;
    const status = outcome.error?.status;
    if (typeof status === "number" && !PASSING.has(status)) throw outcome.error;
    if (outcome.received) attempt = 0;
    onRetry?.(outcome.error, attempt + 1);
    await pause(Math.min(longestDelay, firstDelay * 2 ** attempt) * (0.5 + Math.random() / 2), signal);
    if (signal?.aborted) return "aborted";
  }
}

function withMark(parameters, watch) {
  if (!watch) return parameters;
  return { ...parameters, forwardedProps: { ...parameters.forwardedProps, reknit: { resume: true } } };
}

// A response may hold several runs; the last one decides.
function subscriberOf(outcome) {
  return {
    onRunStartedEvent: () => {
      outcome.received = true;
      outcome.end = undefined;
    },
    onRunFinishedEvent: () => {
      outcome.end = "finished";
    },
    onRunErrorEvent: () => {
      outcome.end = "error";
    },
  };
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, milliseconds);
    signal?.addEventListener("abort", done, { once: true });
    function done() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    }
  });
}
