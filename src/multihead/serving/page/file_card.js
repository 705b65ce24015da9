// The card of the page that translates a file: choosing, progress, cancel, download.
import { FileTranslation } from "./file.js";
import { number, say } from "./language.js";
import { remarksOn } from "./output.js";

const MAX_REMARKS = 10;
const TENTHS = { maximumFractionDigits: 1 };
const byId = (id) => document.getElementById(id);

export class FileCard {
  #server;
  #describe;
  #announce;
  #current = null;

  /** @param describe returns [settings and languages of the requests, {source, target}] when a file is begun.
   *  @param announce tells screen readers. */
  constructor(server, describe, announce) {
    this.#server = server;
    this.#describe = describe;
    this.#announce = announce;
    const [card, input] = [byId("file"), byId("file-input")];
    input.addEventListener("change", () => {
      if (input.files.length) this.#start(input.files[0]);
      input.value = ""; // so that the same file can be chosen again
    });
    byId("file-cancel").addEventListener("click", () => this.#current?.cancel());
    card.addEventListener("dragover", (event) => {
      if (![...event.dataTransfer.items].some(({ kind }) => kind === "file")) return;
      event.preventDefault();
      card.classList.add("over");
    });
    card.addEventListener("dragleave", () => card.classList.remove("over"));
    card.addEventListener("drop", (event) => {
      card.classList.remove("over");
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.#start(event.dataTransfer.files[0]);
    });
  }

  #start(file) {
    this.#current?.forget();
    const [request, languages] = this.#describe();
    this.#current = new FileTranslation(this.#server, file, request, languages, (changed) => {
      if (changed !== this.#current) return;
      this.write();
      if (!changed.active) this.#announce(byId("file-state").textContent);
    });
    this.write();
    this.#current.run();
  }

  /** Writes the state of the file, in the language of the page. */
  write() {
    const one = this.#current;
    if (!one) return;
    byId("file-state").textContent = say(`file_${one.phase}`, {
      name: one.name,
      done: one.done,
      total: one.total,
      unit: say(one.isDocument ? "passages" : "lines"),
      message: one.problem?.message ?? "",
      seconds: number(one.seconds, TENTHS),
    });
    byId("file-state").classList.toggle("bad", one.phase === "failed");
    this.#writeProgress(one);
    this.#writeRemarks(one);
  }

  #writeProgress(one) {
    const [bar, download] = [byId("file-progress"), byId("file-download")];
    bar.hidden = !one.active;
    bar.max = one.total || 1;
    if (one.total) bar.value = one.done;
    else bar.removeAttribute("value");
    const { activeElement } = document;
    const [input, cancel] = [byId("file-input"), byId("file-cancel")];
    byId("file-choose").hidden = input.hidden = one.active;
    cancel.hidden = !one.active;
    download.hidden = one.phase !== "done";
    if (one.phase === "done") {
      download.href = one.url;
      download.download = one.translatedName;
    }
    if (activeElement === input && one.active) cancel.focus();
    if (activeElement === cancel && !one.active) (download.hidden ? input : download).focus();
  }

  #writeRemarks(one) {
    const sorted = [...one.remarks].sort((a, b) => a.line - b.line);
    const lines = sorted.slice(0, MAX_REMARKS).map((remark) =>
      say("file_line", { line: remark.line, message: remarksOn(remark).map(([text]) => text).join(" ") }),
    );
    if (sorted.length > lines.length) lines.push(say("file_more", { count: sorted.length - lines.length }));
    byId("file-remarks").replaceChildren(...lines.map((line) => {
      const element = document.createElement("li");
      element.textContent = line;
      return element;
    }));
  }
}
