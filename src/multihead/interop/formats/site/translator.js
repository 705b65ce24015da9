// Text in, text out, in the thread that calls it: as multihead's translating/translator.py with int8 products.

import { Engine } from "./engine.js";
import { tokenizersOf } from "./vocabularies.js";

const SLICE = 0.05; // seconds of search between two looks at messages

/** The fields of a search: their ranges in words, and whether a value is in it. The limits are those of Python. */
const FIELDS = {
  beam: whole(1, 255),
  alpha: between(0, 10),
  length_factor: positive(100),
  length_margin: whole(1, 16384),
  min_length: whole(0, 16384),
  max_length: orNull(whole(1, 1048576)),
  min_factor: between(0, 100),
  length_penalty: among("power", "wu"),
  stopping: among("exact", "ahead", "patience"),
  patience: positive(1000),
};

const OTHERS = ["source", "target", "sentences", "signal", "progress"]; // options that are not of the search

/** A model with its tokenizers. */
export class LocalTranslator {
  /**
   * @param {object} settings model.json
   * @param {Uint8Array} weights weights.bin
   * @param {WebAssembly.Module} module decoding.wasm
   */
  constructor(settings, weights, module) {
    this.settings = settings;
    Object.assign(this, tokenizersOf(settings)); // source, target
    this.engine = new Engine(module, settings.network, weights);
    this.segmenter = segmenterOf(settings.source_language);
  }

  /** This translator for the only direction that fits; language codes are those of model.json, null for any. */
  toward(source, target) {
    const { directions, source_language, target_language } = this.settings;
    const known = directions?.length ? directions : [[source_language, target_language]];
    const fitting = known.filter(([from, to]) => fits(source, from) && fits(target, to));
    const [targets, sources] = [1, 0].map((side) => [...new Set(fitting.map((direction) => direction[side]))]);
    if (targets.length !== 1) {
      const listed = known.map(([from, to]) => `${from ?? "?"}-${to ?? "?"}`).join(", ");
      throw new RangeError(`this model translates ${listed}; say which, by target (and source)`);
    }
    if (!directions?.length) return this;
    const segmenter = segmenterOf(sources.length === 1 ? sources[0] : null);
    return Object.assign(Object.create(this), { source: this.source.toward(targets[0]), segmenter });
  }

  /**
   * Translations of texts, in order: `{text, score, logProbability, finished, ids}` of each. Line breaks remain; a line with more
   * tokens than `longest_line` is translated sentence by sentence; with `sentences` every line is, with "never" none.
   *
   * @param {string[]} texts
   * @param {object} options fields of the `search` of model.json, `source` and `target`, `sentences`, `signal`, and
   *   `progress(done, all)`; `undefined` is as if it were not given
   * @throws {RangeError} a value is out of its range, or the direction is not clear
   * @throws {TypeError} there is no such option
   */
  async translate(texts, options = {}) {
    const { source, target, sentences = false, signal, progress, ...changes } = options;
    const search = checked(this.settings.search, changes);
    const own = this.toward(source, target);
    const plans = texts.map((text) => own.plan(text, sentences));
    const parts = plans.flatMap((plan) => plan.filter((part) => part.text));
    const waiting = parts.map((part) => own.sentence(part, search));
    await this.search(waiting, search, { signal, progress });
    return plans.map((plan) => ({
      text: plan.map((part) => part.before + (part.translation ?? "")).join(""),
      score: plan.reduce((sum, part) => sum + (part.score ?? 0), 0),
      logProbability: plan.reduce((sum, part) => sum + (part.logProbability ?? 0), 0),
      finished: plan.every((part) => part.finished ?? true),
      ids: plan.flatMap((part) => part.ids ?? []),
    }));
  }

  sentence(part, search) {
    const ids = [...this.source.encode(part.text), this.settings.network.symbols.end];
    const factor = Math.trunc(search.length_factor * ids.length) + search.length_margin;
    const limit = Math.max(Math.min(factor, search.max_length ?? Infinity), search.min_length + 1);
    const least = Math.max(Math.trunc(search.min_factor * ids.length), search.min_length);
    return { part, ids, limit, minimum: Math.min(least, limit - 1) };
  }

  /** Searches, and stores each translation in its part. Returns now and then to whoever else uses this thread. */
  async search(waiting, search, { signal, progress }) {
    if (!waiting.length) return;
    const longest = waiting.reduce((most, one) => Math.max(most, one.limit), 1);
    const running = this.engine.open(search, longest);
    try {
      const order = waiting.map((_, number) => number);
      order.sort((one, other) => waiting[other].ids.length - waiting[one].ids.length);
      for (const number of order) {
        const { ids, limit, minimum } = waiting[number];
        running.add(number, ids, limit, minimum);
      }
      for (let left = waiting.length; left; ) {
        const step = running.run(SLICE);
        for (const { number, tokens, ...rest } of step.found) {
          Object.assign(waiting[number].part, { translation: this.target.decode(tokens), ids: tokens, ...rest });
        }
        left = step.left;
        progress?.(waiting.length - left, waiting.length);
        if (left) await pause();
        signal?.throwIfAborted();
      }
    } finally {
      running.close();
    }
  }

  /** The parts of a text that are translated one by one, and what stands before each and after the last one. */
  plan(text, sentences) {
    const found = [];
    let before = "";
    for (const piece of text.split(/(\r?\n)/)) {
      if (!hasText(piece)) {
        before += piece.endsWith("\n") ? piece : ""; // of a line without text, its end
      } else if (sentences === "never" || (!sentences && this.fits(piece))) {
        found.push({ before, text: piece });
        before = "";
      } else {
        for (const sentence of this.sentences(piece)) {
          found.push({ before: before + sentence.before, text: sentence.text });
          before = "";
        }
      }
    }
    return [...found, { before, text: "" }];
  }

  fits(text) {
    return this.source.encode(text).length < this.settings.longest_line;
  }

  /** The sentences of a line without the space around them; those that are too long, in parts. */
  *sentences(line) {
    let before = "";
    for (const { segment } of this.segmenter.segment(line)) {
      const text = segment.trim();
      if (!hasText(segment)) before += segment;
      if (!text) continue;
      before += segment.slice(0, segment.indexOf(text));
      for (const part of this.halves(text)) {
        yield { before: before + part.before, text: part.text };
        before = "";
      }
      before = segment.slice(segment.indexOf(text) + text.length);
    }
  }

  /** A sentence, halved at the space nearest to its middle until its parts fit. */
  *halves(text, before = "") {
    const middle = text.length / 2;
    if (this.fits(text) || text.length < 2) return void (yield { before, text });
    const spaces = [...text.matchAll(/\s+/gu)].map((match) => [match.index, match[0].length]);
    spaces.sort((one, other) => Math.abs(one[0] - middle) - Math.abs(other[0] - middle));
    const [at, length] = spaces[0] ?? [betweenCharacters(text, middle), 0];
    yield* this.halves(text.slice(0, at), before);
    yield* this.halves(text.slice(at + length), text.slice(at, at + length));
  }
}

const segmenterOf = (language) => new Intl.Segmenter(language ?? undefined, { granularity: "sentence" });

/** Whether a language is the one that is asked for; one that is not known may be any. */
const fits = (wanted, own) => !wanted || !own || normal(wanted) === normal(own);

const normal = (code) => code.replaceAll("_", "-").toLowerCase();

/** Whether Python's `str.strip` would leave something. */
const hasText = (text) => /[^\s\x1c-\x1f\x85]/u.test(text.replaceAll("\ufeff", "x"));

const betweenCharacters = (text, middle) => {
  const at = Math.floor(middle);
  return at > 1 && /[\udc00-\udfff]/.test(text[at]) ? at - 1 : Math.max(at, 1);
};

/** The model's own settings of search with the changes of a request. */
function checked(own, changes) {
  const given = Object.entries(changes).filter(([, value]) => value !== undefined);
  const unknown = given.map(([name]) => name).filter((name) => !Object.hasOwn(FIELDS, name));
  if (unknown.length) {
    const known = [...Object.keys(FIELDS), ...OTHERS].join(", ");
    throw new TypeError(`there is no option ${unknown.join(", ")}; expected ${known}`);
  }
  const search = { ...own, ...Object.fromEntries(given) };
  for (const [name, [range, accepts]] of Object.entries(FIELDS)) {
    if (!accepts(search[name])) throw new RangeError(`${name}: expected ${range}, got ${search[name]}`);
  }
  const { min_length: least, max_length: most } = search;
  if (most !== null && most <= least) {
    const got = `max_length ${most} and min_length ${least}`;
    throw new RangeError(`max_length counts the end symbol, too: expected more than min_length, got ${got}`);
  }
  return search;
}

function whole(least, most) {
  const accepts = (value) => Number.isInteger(value) && value >= least && value <= most;
  return [`a whole number from ${least} to ${most}`, accepts];
}

function between(least, most) {
  return [`${least} to ${most}`, (value) => typeof value === "number" && value >= least && value <= most];
}

function positive(most) {
  return [`more than 0, up to ${most}`, (value) => typeof value === "number" && value > 0 && value <= most];
}

function among(...words) {
  return [words.join(" or "), (value) => words.includes(value)];
}

function orNull([range, accepts]) {
  return [`${range}, or null`, (value) => value === null || accepts(value)];
}

/** Lets waiting messages be handled; a timer would wait for milliseconds. */
function pause() {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = () => (port1.close(), resolve());
    port2.postMessage(null);
  });
}
