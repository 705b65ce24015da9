// Text in, text out, in the thread that calls it: as multihead's translating/translator.py with int8 products.

import { Engine } from "./engine.js";
import { tokenizersOf } from "./vocabularies.js";

const SLICE = 0.05; // seconds of search between two looks at messages

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
   *   `progress(done, all)`
   */
  async translate(texts, options = {}) {
    const { source, target, sentences = false, signal, progress, ...changes } = options;
    const search = checked({ ...this.settings.search, ...changes });
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
    for (const piece of text.split(/(\n)/)) {
      if (piece === "\n" || !hasText(piece)) {
        before += piece === "\n" ? piece : "";
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

function checked(search) {
  const { beam, alpha } = search;
  if (!Number.isInteger(beam) || beam < 1 || beam > 255) throw new RangeError(`beam: expected 1 to 255, got ${beam}`);
  if (!(alpha >= 0 && alpha <= 10)) throw new RangeError(`alpha: expected 0 to 10, got ${alpha}`);
  return search;
}

/** Lets waiting messages be handled; a timer would wait for milliseconds. */
function pause() {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resolve) => {
    port1.onmessage = () => (port1.close(), resolve());
    port2.postMessage(null);
  });
}
