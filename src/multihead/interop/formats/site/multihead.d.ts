/** Translation in the browser, offline, with a model that `multihead export --format web` wrote. */

export interface Progress {
  /** `done` of `all` bytes (while loading) or sentences (while translating). */
  (done: number, all: number): void;
}

/**
 * An option that is `undefined` is as if it were not given. A value out of its range is a `RangeError`, an option that is
 * not listed here a `TypeError`.
 */
export interface Options {
  /** Hypotheses per sentence, 1 to 255; 1 is greedy search. By default the model's own. */
  beam?: number;
  /** Length penalty: a hypothesis y is ranked by log p(y | x) / |y|^alpha. */
  alpha?: number;
  /** Fewest tokens of the translation of a sentence, excluding the end symbol. */
  min_length?: number;
  /** Most tokens of the translation of a sentence, including the end symbol; null for the model's rule. */
  max_length?: number | null;
  /** The other settings of `Translator.search`. */
  length_factor?: number;
  length_margin?: number;
  min_factor?: number;
  length_penalty?: "power" | "wu";
  stopping?: "exact" | "ahead" | "patience";
  patience?: number;
  /** Of a model of several directions: language codes as in `directions`. The target decides. */
  source?: string | null;
  target?: string | null;
  /** Translate every line sentence by sentence, only lines that are too long (false, the default), or none. */
  sentences?: boolean | "never";
  /** Stops the translation, which is then rejected with an `AbortError`. */
  signal?: AbortSignal;
  progress?: Progress;
}

export interface Translation {
  text: string;
  /** log p(y | x) / |y|^alpha, summed over the sentences. */
  score: number;
  /** log p(y | x), summed over the sentences. */
  logProbability: number;
  /** False if the length limit cut a sentence. */
  finished: boolean;
  /** The tokens of the sentences, without end symbols. */
  ids: number[];
}

export class Translator {
  /** Language codes; null if the model does not know them. */
  readonly source: string | null;
  readonly target: string | null;
  /** Source and target of each direction, if the model has several; `translate` then needs `target`. */
  readonly directions: readonly (readonly [string | null, string])[];
  /** The model's own settings of search. */
  readonly search: Readonly<Record<string, unknown>>;
  /** The translation of a text; line breaks remain. */
  translate(text: string, options?: Options): Promise<string>;
  /** The translation of each text, in order. */
  translate(texts: string[], options?: Options): Promise<string[]>;
  /** The same with scores. */
  translations(texts: string[], options?: Options): Promise<Translation[]>;
  /** Frees the model; requests that wait, and later ones, are rejected with an `AbortError`. */
  close(): void;
}

/** Loads the model of a folder, by default the one with multihead.js, into a thread of its own. */
export function load(folder?: string | URL, options?: { progress?: Progress }): Promise<Translator>;
