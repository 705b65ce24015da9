// What keeps all lines from going on, said in words, with the way out of it: a countdown where the server is busy, a
// look every few seconds where it is gone, a field where it wants a token. `go` is called when it may go on.

const LOOK = 2000;

export class Notice {
  #element;
  #server;
  #go;
  #timer = 0;

  constructor(element, server, go) {
    this.#element = element;
    this.#server = server;
    this.#go = go;
    this.#part("#retry").addEventListener("click", () => this.#over());
    this.#part("#token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      server.token = this.#part("#token").value;
      this.#over();
    });
  }

  show(problem) {
    clearTimeout(this.#timer);
    const known = !this.#element.hidden && !this.#part("#token-form").hidden;
    this.#element.hidden = false;
    this.#element.className = `notice ${problem.kind}`;
    this.#part("#token-form").hidden = problem.kind !== "token";
    this.#part("#retry").hidden = problem.kind === "token";
    this.#say(problem.message);
    if (problem.kind === "token" && !known) this.#part("#token").focus();
    if (problem.kind === "busy") this.#count(problem.message, Math.ceil(problem.after));
    if (problem.kind === "gone") this.#look();
  }

  #count(message, seconds) {
    if (seconds <= 0) return this.#over();
    this.#say(`${message} Trying again in ${seconds} s.`);
    this.#timer = setTimeout(() => this.#count(message, seconds - 1), 1000);
  }

  #look() {
    this.#timer = setTimeout(async () => {
      if (await this.#server.alive()) this.#over();
      else if (!this.#element.hidden) this.#look();
    }, LOOK);
  }

  #over() {
    clearTimeout(this.#timer);
    this.#element.hidden = true;
    this.#go();
  }

  #say(words) {
    this.#part("#notice-text").textContent = words;
  }

  #part(selector) {
    return this.#element.querySelector(selector);
  }
}
