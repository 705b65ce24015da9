// Shows a problem that stops all lines, and its remedy.
//
// The remedy is a countdown if the server is busy, a check every few seconds if it is offline, an input if it requires
// a token. Calls `resume` when translating can go on.

const CHECK_INTERVAL = 2000; // milliseconds

export class Notice {
  #element;
  #server;
  #resume;
  #timer = 0;

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
    this.#setText(problem.message);
    if (problem.kind === "token" && !asked) this.#find("#token").focus();
    if (problem.kind === "busy") this.#countDown(problem.message, Math.ceil(problem.after));
    if (problem.kind === "offline") this.#checkLater();
  }

  #countDown(message, seconds) {
    if (seconds <= 0) return this.#done();
    this.#setText(`${message} Trying again in ${seconds} s.`);
    this.#timer = setTimeout(() => this.#countDown(message, seconds - 1), 1000);
  }

  #checkLater() {
    this.#timer = setTimeout(async () => {
      if (await this.#server.alive()) this.#done();
      else if (!this.#element.hidden) this.#checkLater();
    }, CHECK_INTERVAL);
  }

  #done() {
    clearTimeout(this.#timer);
    this.#element.hidden = true;
    this.#resume();
  }

  #setText(text) {
    this.#find("#notice-text").textContent = text;
  }

  #find(selector) {
    return this.#element.querySelector(selector);
  }
}
