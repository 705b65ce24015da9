// Shows a problem that stops all lines, and its remedy.
//
// The remedy is a countdown if the server is busy, a check every few seconds if it is offline, an input if it requires
// a token. Calls `resume` when translating can go on.
import { say } from "./language.js";

const CHECK_INTERVAL = 2000; // milliseconds

export class Notice {
  #element;
  #server;
  #resume;
  #timer = 0;
  #problem = null;
  #seconds = 0;

  constructor(element, server, resume) {
    this.#element = element;
    this.#server = server;
    this.#resume = resume;
    this.#find("#retry").addEventListener("click", () => this.#done());
    this.#find("#token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      server.token = this.#find("#token").value;
      this.#done();
    });
  }

  show(problem) {
    clearTimeout(this.#timer);
    const asked = !this.#element.hidden && !this.#find("#token-form").hidden;
    this.#element.hidden = false;
    this.#element.className = `notice ${problem.kind}`;
    this.#find("#token-form").hidden = problem.kind !== "token";
    this.#find("#retry").hidden = problem.kind === "token";
    this.#problem = problem;
    this.write();
    if (problem.kind === "token" && !asked) this.#find("#token").focus();
    if (problem.kind === "busy") this.#countDown(Math.ceil(problem.after));
    if (problem.kind === "offline") this.#checkLater();
  }

  hide() {
    clearTimeout(this.#timer);
    this.#element.hidden = true;
  }

  /** Writes the problem, in the language of the page. */
  write() {
    this.#find("#notice-text").textContent = this.#problem?.message ?? "";
    this.#writeSeconds();
  }

  /** Apart from the message, which would be read aloud again every second. */
  #writeSeconds() {
    const waits = this.#problem?.kind === "busy";
    this.#find("#notice-seconds").textContent = waits ? say("retrying", { seconds: this.#seconds }) : "";
  }

  #countDown(seconds) {
    if (seconds <= 0) return this.#done();
    this.#seconds = seconds;
    this.#writeSeconds();
    this.#timer = setTimeout(() => this.#countDown(seconds - 1), 1000);
  }

  #checkLater() {
    this.#timer = setTimeout(async () => {
      if (await this.#server.alive()) this.#done();
      else if (!this.#element.hidden) this.#checkLater();
    }, CHECK_INTERVAL);
  }

  #done() {
    this.hide();
    this.#resume();
  }

  #find(selector) {
    return this.#element.querySelector(selector);
  }
}
