// Translation in the browser, offline: `await load()`, then `await translator.translate("Ein Hund rennt.")`.

/**
 * Loads the model of a folder that `multihead export --format web` wrote, into a thread of its own.
 *
 * @param {string | URL} [folder] by default the folder of this file
 * @param {{progress?: (done: number, all: number) => void}} [options] `progress` counts bytes
 */
export async function load(folder = new URL("./", import.meta.url), { progress } = {}) {
  const translator = new Translator();
  try {
    const base = globalThis.document?.baseURI ?? import.meta.url;
    const address = String(new URL(String(folder).replace(/\/?$/, "/"), base));
    Object.assign(translator, await translator.ask("load", { folder: address }, { progress }));
    return translator;
  } catch (error) {
    translator.close();
    throw error;
  }
}

/** A loaded model. */
export class Translator {
  source = null; // language codes; null if the model does not know them
  target = null;
  directions = []; // [source, target] of each, if the model has several
  search = {}; // its own settings of search

  #worker = new Worker(new URL("worker.js", import.meta.url), { type: "module", name: "multihead" });
  #waiting = new Map(); // number of a request: {resolve, reject, progress}
  #closed = false;
  #last = 0;

  constructor() {
    this.#worker.onmessage = ({ data }) => this.#answer(data);
    this.#worker.onerror = (event) => {
      event.preventDefault();
      const error = new Error(event.message ?? "the thread of the translator could not be started");
      for (const { reject } of this.#waiting.values()) reject(error);
      this.#waiting.clear();
    };
  }

  /**
   * The translation of a text, or of each of several; line breaks remain.
   *
   * @param {string | string[]} text
   * @param {object} [options] see multihead.d.ts
   */
  async translate(text, { progress, signal, ...options } = {}) {
    const found = await this.translations(typeof text === "string" ? [text] : text, { progress, signal, ...options });
    const texts = found.map((one) => one.text);
    return typeof text === "string" ? texts[0] : texts;
  }

  /** As `translate`, with `{text, score, logProbability, finished, ids}` of each text. */
  translations(texts, { progress, signal, ...options } = {}) {
    return this.ask("translate", { texts, options }, { progress, signal });
  }

  /** Ends the thread and frees the model; requests that wait, and later ones, are rejected. */
  close() {
    this.#closed = true;
    this.#worker.terminate();
    for (const { reject } of this.#waiting.values()) reject(closed());
    this.#waiting.clear();
  }

  /** Sends a request to the thread. */
  ask(kind, given, { progress, signal } = {}) {
    const number = ++this.#last;
    const stop = () => this.#worker.postMessage({ number, kind: "stop" });
    const answered = new Promise((resolve, reject) => {
      if (this.#closed) throw closed();
      signal?.throwIfAborted();
      this.#waiting.set(number, { resolve, reject, progress });
      signal?.addEventListener("abort", stop);
      this.#worker.postMessage({ number, kind, given });
    });
    return answered.finally(() => signal?.removeEventListener("abort", stop)); // a signal may serve many requests
  }

  #answer({ number, progress, result, error }) {
    const request = this.#waiting.get(number);
    if (!request) return;
    if (progress) return void request.progress?.(progress.done, progress.all);
    this.#waiting.delete(number);
    if (error) request.reject(error);
    else request.resolve(result);
  }
}

const closed = () => new DOMException("the translator was closed", "AbortError");
