// Requests to the server; everything that can go wrong is a `Problem`.
//
// URLs are relative, so that the page works below any path of a proxy.
import { eventsOf } from "./events.js";

/** A failed request. `kind` is "offline" (no response), "busy" (retry after `after` seconds), "token" (a token is
 *  required) or "refused" (this text is not accepted). */
export class Problem extends Error {
  constructor(kind, message, after = 0) {
    super(message);
    this.kind = kind;
    this.after = after;
  }
}

const OFFLINE = "The server cannot be reached. Your text is kept; this page goes on by itself as soon as it is back.";

export class Server {
  #token = storedToken();

  set token(value) {
    this.#token = value;
    try {
      sessionStorage.setItem("multihead.token", value);
    } catch {
      // storage is disabled: the page asks again after a reload
    }
  }

  /** Languages, limits and defaults of the server, or of its model for these languages ({source, target}). */
  async info(languages) {
    return (await this.#fetch(`info?${new URLSearchParams(languages)}`, {})).json();
  }

  /** All pairs of languages, as {source, target}. */
  async pairs() {
    const listed = await (await this.#fetch("languages", {})).json();
    return listed.flatMap(({ code, targets }) => targets.map((target) => ({ source: code, target })));
  }

  /** The description of the API. */
  async description() {
    return (await this.#fetch("openapi.json", {})).json();
  }

  /** Sends a request with a JSON body, or without one; returns its status and body as text, also of an error. */
  async send(method, path, body) {
    const headers = { ...(body ? { "Content-Type": "application/json" } : {}), ...this.#authorization };
    try {
      const response = await fetch(path, { method, headers, body, cache: "no-store" });
      return `${response.status}\n${await response.text()}`;
    } catch {
      return OFFLINE;
    }
  }

  /** Whether the server responds; never throws. */
  async alive() {
    try {
      return (await fetch("health", { cache: "no-store" })).ok;
    } catch {
      return false;
    }
  }

  /** Translates one line; calls `onPartial` with each partial translation. */
  async translate(request, signal, onPartial) {
    const response = await this.#fetch("translate/stream", {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
      body: JSON.stringify(request),
      signal,
    });
    try {
      for await (const { event, data } of eventsOf(response.body)) {
        const content = JSON.parse(data);
        if (event === "partial") onPartial(content.text);
        if (event === "done") return content;
        if (event === "error") throw this.#problem(0, content);
      }
    } catch (error) {
      if (error instanceof Problem || error.name === "AbortError") throw error;
      throw new Problem("offline", OFFLINE);
    }
    throw new Problem("refused", "The server gave no translation.");
  }

  get #authorization() {
    return this.#token ? { Authorization: `Bearer ${this.#token}` } : {};
  }

  async #fetch(path, options) {
    const headers = { ...options.headers, ...this.#authorization };
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("offline", OFFLINE);
    }
    if (response.ok) return response;
    const content = await response.json().catch(() => ({}));
    throw this.#problem(response.status, content, Number(response.headers.get("Retry-After")));
  }

  #problem(status, content, after = 0) {
    const message = typeof content.message === "string" ? content.message : "";
    if (status === 401 || status === 403) {
      const reason = this.#token ? "The server did not take this token." : "This server asks for a token.";
      return new Problem("token", reason);
    }
    const wait = Math.max(after || 0, 1);
    if (status === 429 || content.error === "queue_full") return new Problem("busy", "The server is busy.", wait);
    if (content.error === "loading") return new Problem("busy", "The model is being loaded.", wait);
    if (content.error === "draining") return new Problem("busy", "The server is shutting down.", wait);
    if (status >= 502 && !message) return new Problem("offline", OFFLINE); // from a proxy
    return new Problem("refused", message ? sentence(message) : `The server refused this text (status ${status}).`);
  }
}

/** A message of the server (lower case, without a full stop) as a sentence. */
export function sentence(message) {
  return message.charAt(0).toUpperCase() + message.slice(1) + (/[.!?]$/.test(message) ? "" : ".");
}

function storedToken() {
  try {
    return sessionStorage.getItem("multihead.token") ?? "";
  } catch {
    return "";
  }
}
