// Requests to the server; everything that can go wrong is a `Problem`.
//
// URLs are relative, so that the page works below any path of a proxy.
import { eventsOf } from "./events.js";
import { say } from "./language.js";

const UNSAID = 5; // seconds until a retry where the server does not say how many: an event has no Retry-After

/** A failed request. `kind` is "offline" (no response), "busy" (retry after `after` seconds), "token" (a token is
 *  required), "refused" (this text is not accepted) or "stopped". `code` is the server's word for it. */
export class Problem extends Error {
  #key;
  #values;
  #otherwise;

  /** @param key of the message in the language of the page; `otherwise` is the message where it has none. */
  constructor(kind, key, { values = {}, otherwise = "", after = 0, code = "" } = {}) {
    super();
    Object.assign(this, { kind, after, code });
    this.#key = key;
    this.#values = values;
    this.#otherwise = otherwise;
  }

  get message() {
    return say(this.#key, this.#values, this.#otherwise);
  }
}

export class Server {
  #token = storedToken();

  /** What the server accepts; known after `info`. */
  limits = {};

  set token(value) {
    this.#token = value;
    try {
      sessionStorage.setItem("multihead.token", value);
    } catch {
      // storage is disabled: the page asks again after a reload
    }
  }

  /** Languages, limits and defaults of the server, or of one of its models ({source, target, model}). */
  async info(chosen) {
    const received = await this.#json(`info?${new URLSearchParams(chosen)}`);
    this.limits = received.limits;
    return received;
  }

  /** The models of the server, as {source, target, name}. */
  async models() {
    return this.#json("models");
  }

  /** All pairs of languages, as {source, target}. */
  async pairs() {
    const listed = await this.#json("languages");
    return listed.flatMap(({ code, targets }) => targets.map((target) => ({ source: code, target })));
  }

  /** The description of the API. */
  async description() {
    return this.#json("openapi.json");
  }

  /** Sends a request with a JSON body, or without one; returns its status and body as text, also of an error. */
  async send(method, path, body) {
    const headers = { ...(body ? { "Content-Type": "application/json" } : {}), ...this.#authorization };
    try {
      const response = await fetch(path, { method, headers, body, cache: "no-store" });
      return `${response.status}\n${await response.text()}`;
    } catch {
      return say("offline");
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
    const options = { headers: { "Content-Type": "application/json" }, body: JSON.stringify(request), signal };
    return this.#watch("translate/stream", options, ({ text }) => onPartial(text));
  }

  /** The translations of several texts, as {text, finished, ...}. */
  async translateAll(request, signal) {
    const received = await this.#json("translate", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(request),
      signal,
    });
    return received.translations;
  }

  /** Translates a document; `onProgress(done, total)` counts its passages. Returns its address, as {translatedFileUrl}. */
  async translateDocument(file, languages, signal, onProgress) {
    const form = new FormData();
    for (const [name, value] of Object.entries(languages)) form.append(name, value);
    form.append("file", file);
    return this.#watch("translate_file", { body: form, signal }, ({ done, total }) => onProgress(done, total));
  }

  /** Posts a request; calls `onProgress` with each event until the last one, which is returned. */
  async #watch(path, options, onProgress) {
    const headers = { ...options.headers, Accept: "text/event-stream" };
    const response = await this.#fetch(path, { ...options, method: "POST", headers });
    try {
      for await (const { event, data } of eventsOf(response.body)) {
        const content = JSON.parse(data);
        if (event === "done") return content;
        if (event === "error") throw this.#problem(0, content, UNSAID);
        onProgress(content);
      }
    } catch (error) {
      if (error instanceof Problem || error.name === "AbortError") throw error;
      throw new Problem("offline", "offline");
    }
    throw new Problem("refused", "nothing");
  }

  /** The content of a response; one that is not JSON is a proxy's, or was cut off. */
  async #json(path, options = {}) {
    const response = await this.#fetch(path, options);
    try {
      return await response.json();
    } catch (error) {
      throw error.name === "AbortError" ? error : new Problem("offline", "offline");
    }
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
      throw new Problem("offline", "offline");
    }
    if (response.ok) return response;
    const content = await response.json().catch(() => ({}));
    throw this.#problem(response.status, content, Number(response.headers.get("Retry-After")));
  }

  #problem(status, { error: word, message: told }, seconds = 0) {
    // LibreTranslate's API has the sentence in place of the word.
    const [code, message] = typeof told === "string" ? [word, told] : ["", typeof word === "string" ? word : ""];
    if (status === 401 || status === 403) return new Problem("token", this.#token ? "token_wrong" : "token_needed");
    const after = Math.max(seconds || 0, 1);
    if (status === 429 || code === "queue_full") return new Problem("busy", "busy", { after, code });
    if (code === "loading" || code === "draining") return new Problem("busy", code, { after, code });
    if (code === "model_unavailable") {
      return new Problem("busy", `error_${code}`, { otherwise: sentence(message), after, code });
    }
    if (status >= 502 && !message) return new Problem("offline", "offline"); // from a proxy
    if (!message) return new Problem("refused", "refused", { values: { status } });
    return new Problem("refused", `error_${code}`, { values: this.limits, otherwise: sentence(message), code });
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
