// Translates the lines of the text, one request each.
//
// A line that did not change is not requested again, the request of a changed line is aborted; a few run in parallel
// and share a batch in the server. Drawing is left to `onChange`.
import { Problem } from "./api.js";

const MAX_RUNNING = 3;

/** A line: its source with the number of its code points, as the server counts, its translation so far, and a prefix the
 *  translation must begin with.
 *  state: "empty", "waiting", "running", "done" or "refused"; `text` is the old translation until a new one arrives. */
class Line {
  constructor(source, old) {
    this.source = source;
    this.characters = [...source].length;
    this.prefix = "";
    this.state = source.trim() ? "waiting" : "empty";
    this.text = this.state === "empty" ? "" : (old?.text ?? "");
    this.result = null;
    this.problem = null;
    this.running = null;
    this.seconds = 0;
  }
}

export class Lines {
  #server;
  #settings;
  #onChange;
  #onProblem;
  #paused = true;
  #timer = 0;
  all = [];

  /** `settings(text)` returns the settings of a request, `onChange(line, grown)` is called when a line changes (null:
   *  all lines; `grown`: only its unfinished translation), `onProblem(problem)` when a problem stops all lines. Requests
   *  start with the first `resume`. */
  constructor(server, settings, onChange, onProblem) {
    this.#server = server;
    this.#settings = settings;
    this.#onChange = onChange;
    this.#onProblem = onProblem;
  }

  /** Sets the text; keeps unchanged lines at its beginning and end. */
  set(text, wait) {
    const sources = text === "" ? [] : text.split("\n");
    const old = this.all;
    const least = Math.min(sources.length, old.length);
    let head = 0;
    while (head < least && old[head].source === sources[head]) head++;
    let tail = 0;
    while (tail < least - head && old.at(-1 - tail).source === sources.at(-1 - tail)) tail++;
    const removed = old.slice(head, old.length - tail);
    removed.forEach((line) => this.#abort(line));
    this.all = [
      ...old.slice(0, head),
      ...sources.slice(head, sources.length - tail).map((source, place) => new Line(source, removed[place])),
      ...old.slice(old.length - tail),
    ];
    this.#onChange(null);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#startWaiting(), wait);
  }

  /** Translates a line again, beginning with `prefix`. */
  retranslate(line, prefix) {
    this.#restart(line);
    line.prefix = prefix;
    this.#onChange(line);
    this.#startWaiting();
  }

  /** Translates all lines again, with changed settings. */
  retranslateAll() {
    this.all.filter((line) => line.state !== "empty").forEach((line) => this.#restart(line));
    this.#onChange(null);
    this.#startWaiting();
  }

  /** Aborts all requests; finished translations stay. */
  stop() {
    clearTimeout(this.#timer);
    for (const line of this.all) {
      if (line.state !== "waiting" && line.state !== "running") continue;
      this.#abort(line);
      line.state = "refused";
      line.problem = new Problem("stopped", "stopped");
      this.#onChange(line);
    }
  }

  /** Starts no request until the next `resume`. */
  pause() {
    this.#paused = true;
  }

  /** Starts, or continues after a problem. */
  resume() {
    this.#paused = false;
    this.#startWaiting();
  }

  get unfinished() {
    return this.all.some((line) => line.state === "waiting" || line.state === "running");
  }

  /** Aborts a request; `#run` ignores its results because the controller is gone. */
  #abort(line) {
    line.running?.abort();
    line.running = null;
  }

  #restart(line) {
    this.#abort(line);
    line.problem = null;
    line.state = "waiting";
  }

  #startWaiting() {
    if (this.#paused) return;
    let free = MAX_RUNNING - this.all.filter((line) => line.running).length;
    for (const line of this.all) {
      if (free <= 0) return;
      if (line.state !== "waiting") continue;
      free--;
      this.#run(line);
    }
  }

  async #run(line) {
    const controller = new AbortController();
    line.running = controller;
    line.state = "running";
    this.#onChange(line);
    const started = performance.now();
    const prefix = line.prefix ? { prefix: line.prefix } : {};
    const request = { ...this.#settings(line.source), text: line.source, ...prefix };
    try {
      const result = await this.#server.translate(request, controller.signal, (text) => {
        if (line.running !== controller) return;
        line.result = null;
        line.text = text;
        this.#onChange(line, true);
      });
      if (line.running !== controller) return;
      const seconds = (performance.now() - started) / 1000;
      Object.assign(line, { result, text: result.text, state: "done", running: null, seconds });
    } catch (error) {
      if (line.running !== controller) return;
      line.running = null;
      this.#fail(line, error);
    }
    this.#onChange(line);
    this.#startWaiting();
  }

  #fail(line, error) {
    if (!(error instanceof Problem)) throw error; // a bug: report it in the console
    line.state = "waiting";
    if (error.kind === "refused") {
      Object.assign(line, { state: "refused", problem: error, result: null, text: "" });
    } else if (!this.#paused) {
      this.#paused = true;
      this.#onProblem(error);
    }
  }
}
