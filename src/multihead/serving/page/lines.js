// The work: each line of the text is one request. A line that did not change is not asked again, one that did is
// cancelled at once; a few run side by side (the server lets them share a batch). Draws nothing: `changed` is told.
import { Problem } from "./api.js";

const AT_ONCE = 3;

/** A line: its source, what is known of its translation, and the words that it must begin with.
 *  state: "empty", "waiting", "running", "done" or "refused"; `text` is the old translation until a new one grows. */
class Line {
  constructor(source, old) {
    this.source = source;
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
  #wish;
  #changed;
  #stopped;
  #paused = true;
  #timer = 0;
  all = [];

  /** @param wish gives the settings of a request for a text, `changed(line)` is told what happens to a line and
   *  `stopped(problem)` what keeps all of them from going on, until `go`. Nothing is asked before the first `go`. */
  constructor(server, wish, changed, stopped) {
    this.#server = server;
    this.#wish = wish;
    this.#changed = changed;
    this.#stopped = stopped;
  }

  /** The text is now this one: keeps the lines at its beginning and end that are as they were. */
  set(text, wait) {
    const sources = text === "" ? [] : text.split("\n");
    const old = this.all;
    const least = Math.min(sources.length, old.length);
    let head = 0;
    while (head < least && old[head].source === sources[head]) head++;
    let tail = 0;
    while (tail < least - head && old.at(-1 - tail).source === sources.at(-1 - tail)) tail++;
    const gone = old.slice(head, old.length - tail);
    gone.forEach((line) => this.#cancel(line));
    this.all = [
      ...old.slice(0, head),
      ...sources.slice(head, sources.length - tail).map((source, place) => new Line(source, gone[place])),
      ...old.slice(old.length - tail),
    ];
    this.#changed(null);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#pump(), wait);
  }

  /** One line once more, beginning with these words. */
  begin(line, prefix) {
    this.#again(line);
    line.prefix = prefix;
    this.#changed(line);
    this.#pump();
  }

  /** All of them once more: the settings have changed. */
  renew() {
    this.all.filter((line) => line.state !== "empty").forEach((line) => this.#again(line));
    this.#changed(null);
    this.#pump();
  }

  /** Nothing more is asked, and what runs is given up; what has been found stays. */
  stop() {
    clearTimeout(this.#timer);
    for (const line of this.all) {
      if (line.state !== "waiting" && line.state !== "running") continue;
      this.#cancel(line);
      line.state = "refused";
      line.problem = new Problem("stopped", "Stopped.");
      this.#changed(line);
    }
  }

  /** Begins, and goes on after a problem. */
  go() {
    this.#paused = false;
    this.#pump();
  }

  get unfinished() {
    return this.all.some((line) => line.state === "waiting" || line.state === "running");
  }

  /** Aborted, and not to be heard of again: `#run` knows by the missing controller. */
  #cancel(line) {
    line.running?.abort();
    line.running = null;
  }

  #again(line) {
    this.#cancel(line);
    line.problem = null;
    line.state = "waiting";
  }

  #pump() {
    if (this.#paused) return;
    let free = AT_ONCE - this.all.filter((line) => line.running).length;
    for (const line of this.all) {
      if (free <= 0) return;
      if (line.state !== "waiting") continue;
      free--;
      this.#run(line);
    }
  }

  async #run(line) {
    const mine = new AbortController();
    line.running = mine;
    line.state = "running";
    this.#changed(line);
    const started = performance.now();
    const wish = { ...this.#wish(line.source), text: line.source, ...(line.prefix ? { prefix: line.prefix } : {}) };
    try {
      const result = await this.#server.translate(wish, mine.signal, (text) => {
        if (line.running !== mine) return;
        line.result = null;
        line.text = text;
        this.#changed(line);
      });
      if (line.running !== mine) return;
      const seconds = (performance.now() - started) / 1000;
      Object.assign(line, { result, text: result.text, state: "done", running: null, seconds });
    } catch (error) {
      if (line.running !== mine) return;
      line.running = null;
      this.#failed(line, error);
    }
    this.#changed(line);
    this.#pump();
  }

  #failed(line, error) {
    if (!(error instanceof Problem)) throw error; // a mistake of ours: it belongs into the console
    line.state = "waiting";
    if (error.kind === "refused") {
      Object.assign(line, { state: "refused", problem: error, result: null, text: "" });
    } else if (!this.#paused) {
      this.#paused = true;
      this.#stopped(error);
    }
  }
}
