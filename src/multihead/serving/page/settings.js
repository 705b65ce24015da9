// How is it searched: the small form, remembered in this browser. A field that is empty is the model's own.

const KEY = "multihead.settings";
const LISTED = 5;
const ALTERNATIVES = 6;
const LOOKED = 6000; // bytes of a line up to which it is asked where words looked: answers grow with the square

export class Settings {
  #form;
  #summary;
  #own = { beam: 5, alignment: false };

  constructor(form, summary, changed) {
    this.#form = form;
    this.#summary = summary;
    this.#recall();
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", () => {
      if (!form.reportValidity()) return;
      this.#keep();
      changed();
    });
    form.addEventListener("reset", () => setTimeout(() => {
      this.#keep();
      changed();
    }));
  }

  /** What the model does when nothing is said, and the most that the server allows. */
  learn({ beam, alpha, guard, alignment, limits }) {
    this.#own = { beam, alignment };
    const fields = this.#form.elements;
    fields.beam.placeholder = String(beam);
    fields.beam.max = fields.n_best.max = String(limits.beam);
    fields.n_best.placeholder = String(Math.min(LISTED, beam));
    fields.alpha.placeholder = String(alpha);
    for (const option of fields.guard.options) option.defaultSelected = option.value === guard;
    fields.guard.value = guard;
    this.#recall();
  }

  /** The part of a request for this text that is not the text. */
  wish(text = "") {
    const { beam, n_best: listed, alpha, guard } = this.#form.elements;
    const width = Number(beam.value) || this.#own.beam;
    return {
      ...(beam.value ? { beam: width } : {}),
      ...(alpha.value === "" ? {} : { alpha: Number(alpha.value) }),
      n_best: Math.min(Number(listed.value) || LISTED, width),
      guard: guard.value,
      ...(this.#own.alignment && new TextEncoder().encode(text).length <= LOOKED
        ? { alignment: true, alternatives: ALTERNATIVES }
        : {}),
    };
  }

  #keep() {
    this.#say();
    try {
      const chosen = [...new FormData(this.#form)].filter(([name, value]) => value !== this.#usual(name));
      localStorage.setItem(KEY, JSON.stringify(Object.fromEntries(chosen)));
    } catch {
      // then they are forgotten with the page
    }
  }

  /** What a field says when nobody has chosen anything. */
  #usual(name) {
    const field = this.#form.elements[name];
    return field.options ? [...field.options].find((option) => option.defaultSelected)?.value : "";
  }

  #recall() {
    try {
      const kept = JSON.parse(localStorage.getItem(KEY) ?? "{}");
      for (const field of this.#form.elements) if (field.id in kept) field.value = kept[field.id];
      if (!this.#form.checkValidity()) this.#form.reset();
    } catch {
      // nothing is kept, or nothing that could be read
    }
    this.#say();
  }

  #say() {
    const { beam = this.#own.beam, n_best: listed } = this.wish();
    this.#summary.textContent = `beam ${beam}, ${listed} listed`;
  }
}
