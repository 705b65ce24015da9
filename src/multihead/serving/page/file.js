// Translates a file: the lines of a text in several requests, a document in one.
//
// The lines are those of `multihead translate`: only LF ends one, with a CR before it, and as many come out as go in.
// Each request is small, so the server's limits hold for lines and not for the file, other clients take their turns, and
// what is done is known. A document (.html, .srt, .vtt) is sent whole; the server finds its passages and counts them.
import { Problem } from "./api.js";

const PART = 16; // lines of a request
const RUNNING = 2; // requests at a time: while one is read, the next is searched
const CHECK_INTERVAL = 2000; // milliseconds between two questions whether the server is back
const DOCUMENTS = /\.(html?|srt|vtt)$/i;
const OTHERS = /\.(pdf|docx?|odt|rtf|epub|pptx?|odp|xlsx?|ods|gz|xz|zst|bz2|zip|png|jpe?g)$/i;
const SMALLER = ["text_too_long", "too_many_sentences", "too_many_texts", "answer_too_large", "body_too_large", "time_exceeded"];

/** The lines of a text. Throws a Problem that names the first line that is not UTF-8. */
export function linesOf(bytes) {
  const decoder = new TextDecoder("utf-8", { fatal: true }); // which leaves out a byte order mark
  let text;
  try {
    text = decoder.decode(bytes);
  } catch {
    throw new Problem("refused", "file_not_text", { values: { line: firstBadLine(bytes, decoder) } });
  }
  const lines = text.split("\n");
  const last = lines.pop();
  return [...lines.map((line) => (line.endsWith("\r") ? line.slice(0, -1) : line)), ...(last ? [last] : [])];
}

function firstBadLine(bytes, decoder) {
  for (let line = 1, start = 0; ; line++) {
    const end = bytes.indexOf(10, start);
    try {
      decoder.decode(bytes.subarray(start, end < 0 ? bytes.length : end));
    } catch {
      return line;
    }
    if (end < 0) return line;
    start = end + 1;
  }
}

/** The name of a translated file: "a.de" becomes "a.en", and "a.txt" becomes "a_en.txt". */
export function translatedName(name, source, target) {
  const dot = name.lastIndexOf(".");
  const [stem, ending] = dot > 0 ? [name.slice(0, dot), name.slice(dot)] : [name, ""];
  const code = target ?? "translation";
  return source && ending === `.${source}` ? `${stem}.${code}` : `${stem}_${code}${ending}`;
}

/** One file. `phase`: "reading", "running", "waiting" (for the server), "done", "canceled" or "failed". */
export class FileTranslation {
  #server;
  #file;
  #request;
  #onChange;
  #stop = new AbortController();
  #began = performance.now();
  #lines = [];
  #left = [];
  #texts = [];
  phase = "reading";
  done = 0;
  total = 0;
  problem = null;
  seconds = 0;

  /** What the server said of lines, {line, finished, warning, guard}. */
  remarks = [];

  /** Where the translation can be fetched, once it is done. */
  url = null;

  /** @param request settings and model of all requests.
   *  @param languages {source, target}; null where the model names none. */
  constructor(server, file, request, languages, onChange) {
    this.#server = server;
    this.#file = file;
    this.#request = request;
    this.#onChange = onChange;
    this.name = file.name;
    this.languages = languages;
    this.translatedName = translatedName(file.name, languages.source, languages.target);
  }

  async run() {
    try {
      if (OTHERS.test(this.name)) throw problem("file_format", { ending: this.name.match(OTHERS)[0] });
      await (this.isDocument ? this.#translateDocument() : this.#translateLines());
      this.#end("done");
    } catch (error) {
      if (!(error instanceof Problem) && error.name !== "AbortError") {
        this.#end("failed");
        throw error; // a bug: report it in the console
      }
      if (this.phase !== "canceled") {
        this.problem = error;
        this.#stop.abort();
        this.#end("failed");
      }
    }
  }

  cancel() {
    if (!this.active) return;
    this.#end("canceled");
    this.#stop.abort();
  }

  /** Whether the server finds what is to be translated in it. */
  get isDocument() {
    return DOCUMENTS.test(this.name);
  }

  /** Whether it is being translated. */
  get active() {
    return ["reading", "running", "waiting"].includes(this.phase);
  }

  /** Frees the memory of the translation. */
  forget() {
    this.cancel();
    if (this.url?.startsWith("blob:")) URL.revokeObjectURL(this.url);
  }

  #end(phase) {
    this.seconds = (performance.now() - this.#began) / 1000;
    this.#change(phase);
  }

  #change(phase) {
    this.phase = phase;
    this.#onChange(this);
  }

  /** The bytes of the file. Throws a Problem if it is a folder, or has changed since it was chosen. */
  async #read() {
    try {
      return await this.#file.arrayBuffer();
    } catch {
      throw problem("file_unreadable");
    }
  }

  // ---- a text

  async #translateLines() {
    this.#lines = linesOf(new Uint8Array(await this.#read()));
    this.total = this.#lines.length;
    if (!this.total) throw problem("file_empty");
    this.#checkLengths();
    const size = Math.min(PART, this.#server.limits.texts ?? PART);
    for (let start = 0; start < this.total; start += size) {
      this.#left.push([start, Math.min(start + size, this.total)]);
    }
    this.#left.reverse();
    this.#stop.signal.throwIfAborted(); // canceled while it was read
    this.#change("running");
    await Promise.all(Array.from({ length: RUNNING }, () => this.#work()));
    const text = this.#texts.map((line) => `${line}\n`);
    this.url = URL.createObjectURL(new Blob(text, { type: "text/plain;charset=utf-8" }));
  }

  #checkLengths() {
    const limit = this.#server.limits.characters ?? Infinity;
    this.#lines.forEach((line, place) => {
      const count = line.length > limit ? [...line].length : 0; // code points, as the server counts
      if (count > limit) throw onLine(place, problem("file_long", { count, limit }));
    });
  }

  /** Translates parts until none is left. */
  async #work() {
    while (this.#left.length) {
      const part = this.#left.pop();
      try {
        await this.#patiently(() => this.#translatePart(...part));
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        this.#divide(error, ...part);
      }
    }
  }

  async #translatePart(start, end) {
    const request = { ...this.#request, text: this.#lines.slice(start, end) };
    const found = await this.#server.translateAll(request, this.#stop.signal);
    this.#stop.signal.throwIfAborted();
    found.forEach(({ text, finished, warning, guard }, place) => {
      this.#texts[start + place] = text;
      if (finished === false || warning || guard?.suspicious) {
        this.remarks.push({ line: start + place + 1, finished, warning, guard });
      }
    });
    this.done += end - start;
    this.#change("running");
  }

  /** Makes two of a part that is too large; throws what else was said of it. */
  #divide(error, start, end) {
    if (!SMALLER.includes(error.code)) throw error;
    if (end - start === 1) throw onLine(start, error);
    const middle = (start + end) >> 1;
    this.#left.push([middle, end], [start, middle]);
  }

  /** Sends a request again while the server is busy or gone. */
  async #patiently(send) {
    for (;;) {
      try {
        return await send();
      } catch (error) {
        if (error.kind !== "busy" && error.kind !== "offline") throw error;
        this.problem = error;
        this.#change("waiting");
        await this.#pause(error.kind === "busy" ? 1000 * error.after : CHECK_INTERVAL);
        while (error.kind === "offline" && !(await this.#server.alive())) await this.#pause(CHECK_INTERVAL);
        this.#stop.signal.throwIfAborted(); // canceled while it was asked
        this.problem = null;
        this.#change("running");
      }
    }
  }

  /** Waits, unless the translation is canceled. */
  #pause(milliseconds) {
    const { signal } = this.#stop;
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(signal.reason);
      const timer = setTimeout(resolve, milliseconds);
      signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
    });
  }

  // ---- a document

  async #translateDocument() {
    const limit = this.#server.limits.body_bytes ?? Infinity;
    if (this.#file.size + 1000 > limit) {
      throw problem("file_too_large", { size: this.#file.size / 1e6, limit: limit / 1e6 });
    }
    const file = new File([await this.#read()], this.name);
    const { source, target } = this.languages;
    const fields = { source: source ?? "", target: target ?? "", ...(this.#request.model ? { model: this.#request.model } : {}) };
    const count = (done, total) => {
      Object.assign(this, { done, total });
      this.#change("running");
    };
    const made = await this.#patiently(() =>
      this.#server.translateDocument(file, fields, this.#stop.signal, count),
    );
    this.url = `download_file/${made.translatedFileUrl.split("/").at(-1)}`; // below whatever path this page is
  }
}

function problem(key, values = {}) {
  return new Problem("refused", key, { values });
}

/** A problem of one line; its message stays in the language of the page. */
function onLine(place, cause) {
  const values = { line: place + 1, get message() { return cause.message; } };
  return new Problem("refused", "file_line", { values });
}
