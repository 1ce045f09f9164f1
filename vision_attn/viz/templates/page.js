"use strict";
const { spread, veil } = document.querySelector("main").dataset;
const stillness = matchMedia("(prefers-reduced-motion: reduce)");
const FINE = 112;  // places per axis for which the light is worked out; the canvas smooths between them
const WIDE = 6;  // times as many along the frames of a film

/* How much of each region's light, along one axis, reaches each place: rows of a Gaussian that sum to 1. The regions
   lie from `low` to `high`, in shares of the picture, or of each of several frames side by side. */
function reach(regions, low, high, frames = 1) {
  return Array.from({ length: FINE * (frames > 1 ? WIDE : 1) }, (_, place, fine = FINE * (frames > 1 ? WIDE : 1)) => {
    const at = ((place + .5) / fine * frames % 1 - low) * regions / (high - low) - .5;
    const row = Array.from({ length: regions }, (_, region) => Math.exp(-((at - region) ** 2) / (2 * spread ** 2)));
    const sum = row.reduce((a, b) => a + b);
    return row.map(value => value / sum);
  });
}

/* A map of one byte per region, the one that begins at this byte of many, as light in [0, 1] on FINE rows of places. */
function light(maps, start, rows, columns, extent, frames = 1) {
  const text = atob(maps).slice(start, start + frames * rows * columns);
  const bytes = Uint8Array.from(text, letter => letter.charCodeAt(0));
  const [left, top, right, bottom] = extent.split(" ").map(Number);
  const down = reach(rows, top, bottom), across = reach(columns, left, right, frames), fine = across.length;
  const out = new Float32Array(FINE * fine);
  let most = 1e-9;
  for (let y = 0; y < FINE; y++) {
    const line = new Float32Array(frames * columns);
    for (let f = 0; f < frames; f++)
      for (let r = 0; r < rows; r++)
        for (let c = 0; c < columns; c++) line[f * columns + c] += down[y][r] * bytes[(f * rows + r) * columns + c];
    for (let x = 0; x < fine; x++) {
      const first = Math.floor(x / fine * frames) * columns;
      let sum = 0;
      for (let c = 0; c < columns; c++) sum += across[x][c] * line[first + c];
      out[y * fine + x] = sum;
      most = Math.max(most, sum);
    }
  }
  return out.map(value => value / most);
}

class Look {
  constructor(figure) {
    this.figure = figure;
    this.view = figure.querySelector(".view");
    this.photo = figure.querySelector("img");
    this.boxes = figure.querySelector(".boxes");
    this.time = [...figure.querySelectorAll(".time i")];
    this.told = figure.querySelector(".told");
    this.words = [...figure.querySelectorAll(".word")];
    this.button = figure.querySelector("button");
    this.lights = new Map();
    this.pinned = this.shown = this.playing = this.rest = null;
    this.words.forEach((word, turn) => {
      word.addEventListener("pointerenter", event => event.pointerType === "mouse" && this.point(word));
      word.addEventListener("click", () => { this.stop(); this.pin(word); });
      word.addEventListener("focus", () => this.pin(word));
      word.addEventListener("keydown", event => this.key(event, turn));
    });
    figure.querySelector(".caption").addEventListener("pointerleave", event =>
      event.pointerType === "mouse" && !this.playing && this.show(this.pinned));
    figure.addEventListener("focusout", event => {
      if (!this.playing && document.hasFocus() && !figure.contains(event.relatedTarget)) this.pin(null);
    });
    this.button?.addEventListener("click", () => this.playing ? this.stop(true) : this.play());
    this.dials = figure.querySelector(".dials");
    this.layers = this.dials ? Look.layers(this.dials.dataset) : [];
    this.dials?.addEventListener("input", () => this.turn());
    this.dials?.addEventListener("pointerdown", () => this.pin(this.pinned ?? this.shown ?? this.words[0]));
  }

  /* Of each layer the number of heads, the size of its maps, and where its mean and heads begin. */
  static layers({ heads, rows, columns, extent }) {
    const [downs, acrosses] = [rows, columns].map(text => text.split(" ").map(Number));
    let start = 0;
    return heads.split(" ").map((number, layer) => {
      const one = { heads: +number, rows: downs[layer], columns: acrosses[layer], extent, start };
      start += (one.heads + 1) * one.rows * one.columns;
      return one;
    });
  }

  tell() { this.told.textContent = !this.shown ? "" : this.at[0] ? "the attention of a layer" : this.shown.dataset.told; }

  /* The layer and the head that the sliders are at; 0 is the map itself, and the mean of all heads. */
  get at() { return this.dials ? [...this.dials.querySelectorAll("input")].map(input => +input.value) : [0, 0]; }

  turn() {
    const [, heads] = this.dials.querySelectorAll("input"), most = this.layers[this.at[0] - 1]?.heads;
    if (most) heads.max = most;  // layers may differ in heads: the slider then moves to the last one
    const [layer, head] = this.at;
    const [layerTold, headTold] = this.dials.querySelectorAll("output");
    heads.disabled = !layer;
    layerTold.textContent = layer ? `${layer - 1} of 0 to ${this.layers.length - 1}` : "as chosen";
    headTold.textContent = layer && head ? `${head - 1} of 0 to ${heads.max - 1}` : "mean";
    this.pinned ??= this.shown ?? this.words[0];
    if (this.shown) this.glide(this.shown); else this.show(this.pinned);
    this.tell();
  }

  point(word) { this.stop(); this.show(word); }
  pin(word) { this.pinned = word; this.show(word); }
  settle() { this.rest = this.words[this.figure.dataset.rest - 1] ?? null; this.show(this.pinned); }

  key(event, turn) {
    const ahead = getComputedStyle(this.words[turn].parentElement).direction === "rtl" ? -1 : 1;
    const last = this.words.length - 1;
    const to = { ArrowRight: turn + ahead, ArrowLeft: turn - ahead, ArrowDown: turn + 1, ArrowUp: turn - 1,
                 Home: 0, End: last, Enter: turn, " ": turn }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.stop();
    this.words[Math.min(Math.max(to, 0), last)].focus();
    this.pin(this.words[Math.min(Math.max(to, 0), last)]);
  }

  play() {
    let turn = 0;
    const step = () => turn < this.words.length ? this.pin(this.words[turn++]) : this.stop(true);
    this.playing = setInterval(step, 900);
    this.button.textContent = "Stop";
    step();
  }

  stop(plain = false) {
    if (!this.playing) return;
    clearInterval(this.playing);
    this.playing = null;
    this.button.textContent = "Play";
    if (plain) this.pin(null);
  }

  show(word) {
    word ??= this.rest;
    if (word === this.shown) return;
    this.shown = word;
    this.figure.classList.toggle("lit", word !== null);
    for (const each of this.words) {
      each.setAttribute("aria-pressed", each === word);
      if (word) each.tabIndex = each === word ? 0 : -1;
    }
    this.tell();
    this.boxes.replaceChildren(...(word?.dataset.boxes ?? "").split(";").filter(Boolean).map(box => {
      const [left, top, width, height] = box.split(" "), line = document.createElement("i");
      Object.assign(line.style, { left: left + "%", top: top + "%", width: width + "%", height: height + "%" });
      return line;
    }));
    this.clock(word);
    if (word) this.glide(word);
  }

  /* The line below a film: how much of the map lies in each frame, and in which ones a box is. */
  clock(word) {
    if (!this.time.length) return;
    const text = word ? atob(word.dataset.map) : "", part = text.length / this.time.length;
    const shares = this.time.map((_, frame) =>
      [...text.slice(frame * part, (frame + 1) * part)].reduce((sum, letter) => sum + letter.charCodeAt(0), 0));
    const most = Math.max(1, ...shares), lefts = (word?.dataset.boxes ?? "").split(";").filter(Boolean).map(parseFloat);
    this.time.forEach((bar, frame) => {
      bar.style.height = word ? `calc(2px + ${90 * shares[frame] / most}%)` : "";
      bar.classList.toggle("true", lefts.some(left => Math.floor(left / 100 * this.time.length + .001) === frame));
    });
  }

  /* Let the light move over from where it is, unless motion is unwanted or there was none. */
  glide(word) {
    const [layer, head] = this.at, key = `${this.words.indexOf(word)}/${layer && [layer, head]}`;
    if (!this.lights.has(key)) {
      const { rows, columns, extent, frames = 1, start = 0 } = layer ? this.layers[layer - 1] : this.view.dataset;
      const begin = start + head * rows * columns * (layer > 0);
      this.lights.set(key, light(word.dataset[layer ? "layers" : "map"], begin, +rows, +columns, extent, +frames));
    }
    const from = this.now, to = this.lights.get(key), begun = performance.now();
    const frame = time => {
      if (word !== this.shown || to !== this.going) return;
      const part = from && !stillness.matches && document.body.matches(".moving") ? Math.min(Math.max((time - begun) / 180, 0), 1) : 1;
      this.now = part === 1 ? to : to.map((value, place) => from[place] + (value - from[place]) * part);
      this.paint();
      if (part < 1) requestAnimationFrame(frame);
    };
    this.going = to;
    frame(begun);
  }

  /* The picture under a white veil, kept where the light falls; the darkened picture is the image below. */
  paint() {
    if (!this.photo.complete) return void this.photo.decode().then(() => this.paint(), () => {});
    if (!this.canvas) {
      this.canvas = document.createElement("canvas");
      this.canvas.width = Math.max(this.photo.naturalWidth, 448);
      this.canvas.height = Math.round(this.canvas.width * this.photo.naturalHeight / this.photo.naturalWidth);
      this.photo.after(this.canvas);
      this.mask = Object.assign(document.createElement("canvas"), { width: this.now.length / FINE, height: FINE });
    }
    const ink = this.mask.getContext("2d"), points = ink.createImageData(this.mask.width, FINE);
    this.now.forEach((value, place) => { points.data[4 * place + 3] = Math.round(255 * value); });
    ink.putImageData(points, 0, 0);
    const { width, height } = this.canvas, brush = this.canvas.getContext("2d");
    brush.globalCompositeOperation = "copy";
    brush.imageSmoothingEnabled = !this.figure.classList.contains("drawn");
    brush.drawImage(this.photo, 0, 0, width, height);
    brush.globalCompositeOperation = "source-atop";
    const { rows, columns } = this.view.dataset;
    brush.fillStyle = `rgb(255 255 255 / ${rows * columns > 1 ? veil : 0})`;  // a whole frame needs no veil to be told apart
    brush.fillRect(0, 0, width, height);
    brush.globalCompositeOperation = "destination-in";
    brush.imageSmoothingEnabled = true;
    brush.imageSmoothingQuality = "high";
    brush.drawImage(this.mask, 0, 0, width, height);
  }
}

const looks = new Map([...document.querySelectorAll("figure")].map(figure => [figure, new Look(figure)]));

const near = new IntersectionObserver(entries => entries.forEach(({ isIntersecting, target }) => {
  if (!isIntersecting) return;
  near.unobserve(target);
  looks.get(target).settle();  // not before: a page may have thousands of pictures, each with a canvas
}), { rootMargin: "100%" });
looks.forEach((look, figure) => near.observe(figure));

document.addEventListener("pointerdown", event => {  // a tap elsewhere returns to the word at rest
  if (!event.target.closest(".word, button, .dials")) rest();
});
document.addEventListener("keydown", event => event.key === "Escape" && rest());

function rest() {
  document.activeElement?.blur();
  looks.forEach(look => { look.stop(true); look.pin(null); });
}

addEventListener("pointermove", () => document.body.classList.add("moving"), { once: true });

function follow() {  // page.html#image-3-word-5
  const word = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const look = word?.matches(".word") && looks.get(word.closest("figure"));
  if (!look) return;
  word.closest("figure").scrollIntoView({ block: "nearest" });
  look.pin(word);
}
addEventListener("hashchange", follow);
follow();
