"use strict";
/* The glimpse from which on all answers are right, or null. */
function needed(answers, label) {
  let wrong = answers.length;
  while (wrong && answers[wrong - 1].answer === label) wrong--;
  return wrong < answers.length ? wrong + 1 : null;
}

/* "Look for yourself": the user chooses the glimpses of a hidden digit, and the policy of a model plays beside. `models` are
   those of the page that take glimpses of digits, each with its number. */
class Game {
  constructor(section, models) {
    section.hidden = !models.length;
    Object.assign(this, { section, models });
    this.model = section.querySelector("select");
    this.clutter = section.querySelector("input");
    this.rows = section.querySelector("tbody");
    this.verdict = section.querySelector(".verdict");
    this.reveal = section.querySelector(".reveal");
    for (const { name, number } of models) this.model.add(new Option(name, number));
    this.pad = new Pad(section.querySelector(".place"), { taken: () => this.glimpse() });
    this.digits = Object.assign(new Image(), { src: "digits.png" });  // a column for each digit
    for (const field of [this.model, this.clutter]) field.addEventListener("change", () => this.start());
    section.querySelector(".another").addEventListener("click", () => { this.start(); this.pad.node.focus(); });
    this.reveal.addEventListener("click", () => this.end());
    if (models.length) this.start();
  }

  get limit() { return this.models.find(one => String(one.number) === this.model.value).glimpses; }

  tell(text, error = false) {
    this.verdict.textContent = text;
    this.verdict.classList.toggle("error", error);
  }

  /* Hide another digit. */
  start() {
    Object.assign(this, { turn: {}, locations: [], label: Math.floor(10 * Math.random()), seed: Math.floor(1e6 * Math.random()), busy: false, over: false });
    this.digit = this.drawn(this.label);
    this.rows.replaceChildren();
    this.reveal.disabled = true;
    for (const one of this.section.querySelectorAll("img")) one.removeAttribute("src");
    this.tell(`${this.limit} glimpses are left.`);
  }

  /* The picture of a digit, 28 x 28 pixels, as a file. */
  async drawn(label) {
    await this.digits.decode();
    const small = Object.assign(document.createElement("canvas"), { width: 28, height: 28 });
    const row = Math.floor(Math.random() * this.digits.naturalHeight / 28);
    small.getContext("2d").drawImage(this.digits, -28 * label, -28 * row);
    return new Promise(done => small.toBlob(done));
  }

  async glimpse() {
    if (this.busy || this.over) return;
    this.busy = true;
    const turn = this.turn, locations = [...this.locations, this.pad.value];
    const options = { model: this.model.value, clutter: this.clutter.value, seed: this.seed, locations: JSON.stringify(locations) };
    const found = await ask(`/glimpses?${new URLSearchParams(options)}`, await this.digit);
    if (turn !== this.turn) return;
    this.busy = false;
    if (found.error) return this.tell(found.error, true);
    Object.assign(this, { locations, found });
    for (const who of ["user", "policy"]) this.section.querySelector(`.${who} img`).src = found[who].shown;
    const row = this.rows.insertRow();
    row.append(Object.assign(document.createElement("th"), { scope: "row", textContent: locations.length }));
    for (const who of ["user", "policy"]) {
      const { answer, entropy } = found[who].answers.at(-1), cell = row.insertCell();
      cell.append(Object.assign(document.createElement("b"), { textContent: answer }), ` ${entropy.toFixed(2)} nats`);
    }
    this.reveal.disabled = false;
    const left = this.limit - locations.length;
    left ? this.tell(`With your glimpses the answer is ${found.user.answers.at(-1).answer}, with the policy's ${found.policy.answers.at(-1).answer}. ${left} left.`) : this.end();
  }

  /* Show the image, and how many glimpses each needed. */
  end() {
    const { found, label } = this, number = found.user.answers.length;
    this.over = this.reveal.disabled = true;
    const told = who => {
      const first = needed(found[who].answers, String(label));
      return first === null ? `is not right after ${number}` : `is right from glimpse ${first} on`;
    };
    for (const [place, who] of ["user", "policy"].entries()) [...this.rows.rows].forEach((row, glimpse) =>
      row.cells[place + 1].classList.toggle("right", found[who].answers[glimpse].answer === String(label)));
    this.section.querySelector(".whole img").src = found.image;
    this.tell(`It is a ${label}. With your glimpses the answer ${told("user")}; with the policy's it ${told("policy")}.`);
  }
}
