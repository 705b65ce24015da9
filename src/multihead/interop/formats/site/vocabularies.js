// The kinds of vocabularies.

import { UnigramTokenizer } from "./sentencepiece.js";
import { BytePairTokenizer } from "./tokenizer.js";

const KINDS = { "byte-pair": BytePairTokenizer, unigram: UnigramTokenizer };

/** The tokenizers of model.json. */
export function tokenizersOf({ source_tokenizer: source, target_tokenizer: target }) {
  const made = new KINDS[source.kind](source);
  return { source: made, target: target ? new KINDS[target.kind](target) : made };
}
