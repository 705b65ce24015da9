// What the server is asked, and what can go wrong, as one kind of error. Addresses are relative, so that the page works
// below any path of a proxy.
import { eventsOf } from "./events.js";

/** What stood in the way. `kind` says what can be done about it:
 *  "gone" (no answer), "busy" (wait `after` seconds), "token" (one is asked for), "refused" (this text, as it is). */
export class Problem extends Error {
  constructor(kind, message, after = 0) {
    super(message);
    this.kind = kind;
    this.after = after;
  }
}

const GONE = "The server cannot be reached. Your text is kept; this page goes on by itself as soon as it is back.";

export class Server {
  #token = remembered();

  set token(value) {
    this.#token = value;
    try {
      sessionStorage.setItem("multihead.token", value);
    } catch {
      // then it is asked for again after a reload
    }
  }

  /** Languages, limits and defaults. */
  async info() {
    return (await this.#ask("info", {})).json();
  }

  /** Whether anybody answers; never throws. */
  async alive() {
    try {
      return (await fetch("health", { cache: "no-store" })).ok;
    } catch {
      return false;
    }
  }

  /** Translates one line: calls `grown` with each partial translation, and gives the finished one. */
  async translate(wish, signal, grown) {
    const answer = await this.#ask("translate/stream", {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
      body: JSON.stringify(wish),
      signal,
    });
    try {
      for await (const { event, data } of eventsOf(answer.body)) {
        const content = JSON.parse(data);
        if (event === "partial") grown(content.text);
        if (event === "done") return content;
        if (event === "error") throw this.#problem(0, content);
      }
    } catch (error) {
      if (error instanceof Problem || error.name === "AbortError") throw error;
      throw new Problem("gone", GONE);
    }
    throw new Problem("refused", "The server gave no translation.");
  }

  async #ask(path, options) {
    const headers = { ...options.headers, ...(this.#token ? { Authorization: `Bearer ${this.#token}` } : {}) };
    let answer;
    try {
      answer = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("gone", GONE);
    }
    if (answer.ok) return answer;
    const content = await answer.json().catch(() => ({}));
    throw this.#problem(answer.status, content, Number(answer.headers.get("Retry-After")));
  }

  #problem(status, content, after = 0) {
    const said = typeof content.message === "string" ? content.message : "";
    if (status === 401 || status === 403) {
      const words = this.#token ? "The server did not take this token." : "This server asks for a token.";
      return new Problem("token", words);
    }
    const wait = Math.max(after || 0, 1);
    if (status === 429 || content.error === "queue_full") return new Problem("busy", "The server is busy.", wait);
    if (content.error === "loading") return new Problem("busy", "The model is being loaded.", wait);
    if (content.error === "draining") return new Problem("busy", "The server is shutting down.", wait);
    if (status >= 502 && !said) return new Problem("gone", GONE); // a proxy that found nobody
    return new Problem("refused", said ? sentence(said) : `The server refused this text (status ${status}).`);
  }
}

/** The server's words, which begin small and end without a stop, as a sentence. */
export function sentence(words) {
  return words.charAt(0).toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".");
}

function remembered() {
  try {
    return sessionStorage.getItem("multihead.token") ?? "";
  } catch {
    return "";
  }
}
