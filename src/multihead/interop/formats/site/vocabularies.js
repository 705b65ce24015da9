// The kinds of vocabularies.

import { LanguageTokenizer } from "./languages.js";
import { UnigramTokenizer } from "./sentencepiece.js";
import { BytePairTokenizer } from "./tokenizer.js";

const KINDS = { "byte-pair": BytePairTokenizer, unigram: UnigramTokenizer };

/** The tokenizers of model.json. */
export function tokenizersOf({ source_tokenizer: source, target_tokenizer: target }) {
  const made = open(source);
  return { source: made, target: target ? open(target) : made };
}

function open(parts) {
  const made = new KINDS[parts.kind](parts);
  return parts.languages ? new LanguageTokenizer(made, parts.languages, parts.before) : made;
}
