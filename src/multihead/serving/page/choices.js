// The models of a server that has several, to choose from by languages and name.
import { languageName, say } from "./language.js";

const NONE = {};

export class Choices {
  #select;
  #all = [];

  /** @param changed is called when another model is chosen. */
  constructor(select, changed) {
    this.#select = select;
    select.addEventListener("change", changed);
  }

  /** What requests say about the chosen model: {source, target, model}, of which some or all may be missing. It
   *  is the same object until another model is chosen. */
  get chosen() {
    return this.several ? this.#all[this.#select.selectedIndex] : NONE;
  }

  /** Lists the models, and chooses the one that `info` is of.
   *
   *  @param pairs of languages, {source, target}: more than the models have if there is a pivot.
   *  @param models {source, target, name}. */
  set(pairs, models, info) {
    const named = ({ source, target, name }) => ({ ...(source ? { source, target } : {}), ...(name ? { model: name } : {}) });
    const through = pairs.filter((pair) => !models.some((model) => sameLanguages(pair, model)));
    this.#all = [...models.map(named), ...through];
    this.write();
    const first = models.findIndex(
      (model) => sameLanguages(model, { source: info.source_language, target: info.target_language }) && model.name === info.name,
    );
    this.#select.selectedIndex = Math.max(first, 0);
  }

  /** Whether there is something to choose. */
  get several() {
    return this.#all.length > 1;
  }

  /** Writes the list, in the language of the page. */
  write() {
    const before = this.#select.selectedIndex;
    this.#select.replaceChildren(...this.#all.map((one) => new Option(label(one))));
    this.#select.selectedIndex = before;
  }
}

const sameLanguages = (one, other) => one.source === other.source && one.target === other.target;

/** "German → English · ensemble". */
function label({ source, target, model }) {
  const languages = source ? [`${languageName(source)} → ${languageName(target)}`] : [];
  return [...languages, ...(model ? [say(`use: ${model}`, {}, model)] : [])].join(" · ");
}
