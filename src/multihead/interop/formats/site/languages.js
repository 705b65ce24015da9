// Vocabularies with a symbol for each target language: language_tokens.py.

/** Another tokenizer, whose ids of a text follow the symbol of a language. */
export class LanguageTokenizer {
  /**
   * @param {object} inner cuts the texts
   * @param {Object<string, number>} languages the id of the symbol of each language
   * @param {number[]} before what every text begins with: a symbol, or nothing
   */
  constructor(inner, languages, before) {
    Object.assign(this, { inner, languages, before });
    this.symbols = new Set(Object.values(languages));
  }

  /** The same vocabulary, whose texts are translated into a language. */
  toward(language) {
    return new LanguageTokenizer(this.inner, this.languages, [this.languages[language]]);
  }

  /** The ids of a text after the symbol; none for an empty text. */
  encode(text) {
    const ids = this.inner.encode(text);
    return ids.length ? [...this.before, ...ids] : ids;
  }

  /** The text of ids, without symbols. */
  decode(ids) {
    return this.inner.decode(ids.filter((id) => !this.symbols.has(id)));
  }
}
