// The search settings form, stored in this browser.
//
// An empty field means the model's own value.
import { say } from "./language.js";

const KEY = "multihead.settings";
const N_BEST = 5; // translations listed by default
const ALTERNATIVES = 6; // for each word
const MAX_ALIGNED_BYTES = 6000; // longer lines are requested without alignment: its size grows with the square

export class Settings {
  #form;
  #summary;
  #model = { beam: 5, alignment: false };

  constructor(form, summary, changed) {
    this.#form = form;
    this.#summary = summary;
    this.#restore();
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", () => {
      if (!form.reportValidity()) return;
      this.#store();
      changed();
    });
    form.addEventListener("reset", () => setTimeout(() => {
      this.#store();
      changed();
    }));
  }

  /** Sets the defaults of the model and the limits of the server. */
  setDefaults({ beam, alpha, guard, alignment, limits }) {
    this.#model = { beam, alignment };
    const fields = this.#form.elements;
    fields.beam.placeholder = String(beam);
    fields.beam.max = fields.n_best.max = String(limits.beam);
    fields.n_best.placeholder = String(Math.min(N_BEST, beam));
    fields.alpha.placeholder = String(alpha);
    for (const option of fields.guard.options) option.defaultSelected = option.value === guard;
    fields.guard.value = guard;
    this.#restore();
  }

  /** The settings that decide a translation. */
  get search() {
    const { beam, alpha, guard } = this.#form.elements;
    return {
      ...(beam.value ? { beam: Number(beam.value) } : {}),
      ...(alpha.value === "" ? {} : { alpha: Number(alpha.value) }),
      guard: guard.value,
    };
  }

  /** The settings of a request for this text. */
  request(text = "") {
    const { beam, n_best: listed } = this.#form.elements;
    const width = Number(beam.value) || this.#model.beam;
    return {
      ...this.search,
      n_best: Math.min(Number(listed.value) || N_BEST, width),
      ...(this.#model.alignment && new TextEncoder().encode(text).length <= MAX_ALIGNED_BYTES
        ? { alignment: true, alternatives: ALTERNATIVES }
        : {}),
    };
  }

  #store() {
    this.summarize();
    try {
      const chosen = [...new FormData(this.#form)].filter(([name, value]) => value !== this.#default(name));
      localStorage.setItem(KEY, JSON.stringify(Object.fromEntries(chosen)));
    } catch {
      // storage is disabled: settings last until the page is closed
    }
  }

  /** The default value of a field. */
  #default(name) {
    const field = this.#form.elements[name];
    return field.options ? [...field.options].find((option) => option.defaultSelected)?.value : "";
  }

  #restore() {
    try {
      const stored = JSON.parse(localStorage.getItem(KEY) ?? "{}");
      for (const field of this.#form.elements) if (field.id in stored) field.value = stored[field.id];
      if (!this.#form.checkValidity()) this.#form.reset();
    } catch {
      // nothing is stored, or it cannot be read
    }
    this.summarize();
  }

  /** Writes the settings in a few words, in the language of the page. */
  summarize() {
    const { beam = this.#model.beam, n_best: listed } = this.request();
    this.#summary.textContent = say("settings_summary", { beam, listed });
  }
}
