"use strict";
{% include "overlay.js" %}

const stillness = matchMedia("(prefers-reduced-motion: reduce)");

class Viewer {
  constructor(figure) {
    this.figure = figure;
    this.view = figure.querySelector(".view");
    this.photo = figure.querySelector("img");
    this.boxes = figure.querySelector(".boxes");
    this.time = [...figure.querySelectorAll(".time i")];
    this.told = figure.querySelector(".told");
    this.words = [...figure.querySelectorAll(".word")];
    this.button = figure.querySelector("button");
    this.scale = figure.querySelector(".scale");
    this.maps = new Map();
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
    this.layers = this.dials ? Viewer.layers(this.dials.dataset) : [];
    this.dials?.addEventListener("input", () => this.turn());
    this.dials?.addEventListener("pointerdown", () => this.pin(this.pinned ?? this.shown ?? this.words[0]));
  }

  /* Of each layer the number of heads, the size of its maps, and where its mean and heads begin: the first byte, and the
     first map. */
  static layers({ heads, rows, columns, extent }) {
    const [downs, acrosses] = [rows, columns].map(text => text.split(" ").map(Number));
    let start = 0, first = 0;
    return heads.split(" ").map((number, layer) => {
      const one = { heads: +number, rows: downs[layer], columns: acrosses[layer], extent, start, first };
      start += (one.heads + 1) * one.rows * one.columns;
      first += one.heads + 1;
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

  /* The largest share of a region in the map of a word. */
  most(word) {
    const [layer, head] = this.at;
    return +(layer ? word.dataset.mosts.split(" ")[this.layers[layer - 1].first + head] : word.dataset.most);
  }

  /* Where the scale ends: at the largest share of this word, or of all words. */
  top(word) { return Math.max(...(chosen.scale === "one" ? this.words : [word]).map(each => this.most(each))); }

  /* The numbers of the scale, and on it the share of an even map. */
  measure(word) {
    if (!this.scale) return;
    const { rows, columns, frames = 1 } = this.at[0] ? this.layers[this.at[0] - 1] : this.view.dataset;
    const short = value => value ? String(+value.toPrecision(2)) : "0";
    const most = this.most(word), top = this.top(word), even = 1 / (rows * columns * frames);
    this.scale.querySelector(".top").textContent = short(top);
    this.scale.querySelector(".most").style.left = `${top ? 100 * most / top : 0}%`;
    this.scale.querySelector(".even").style.left = `${top ? Math.min(100, 100 * even / top) : 100}%`;
    this.scale.querySelector(".facts").textContent = `largest ${short(most)} · even map ${short(even)}`;
  }

  /* Draw again, after the view or the scale has changed. */
  redraw() { if (this.shown) this.glide(this.shown, true); }

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

  /* Let the map move over from where it is, unless motion is unwanted or there was none. */
  glide(word, at_once = false) {
    const [layer, head] = this.at, key = `${this.words.indexOf(word)}/${layer && [layer, head]}`;
    if (!this.maps.has(key)) {
      const { rows, columns, extent, frames = 1, start = 0 } = layer ? this.layers[layer - 1] : this.view.dataset;
      const begin = start + head * rows * columns * (layer > 0);
      this.maps.set(key, mapOf(word.dataset[layer ? "layers" : "map"], begin, +rows, +columns, extent, +frames));
    }
    this.measure(word);
    const to = this.maps.get(key), share = this.top(word) ? this.most(word) / this.top(word) : 0;
    const from = this.now?.values.length === to.values.length ? this.now : null, begun = performance.now();
    const still = at_once || !from || !["light", "color"].includes(chosen.view) || stillness.matches || !document.body.matches(".moving");
    const mix = (old, young, part) => old + (young - old) * part;
    const frame = time => {
      if (word !== this.shown || to !== this.going) return;
      const part = still ? 1 : Math.min(Math.max((time - begun) / 180, 0), 1);
      this.now = part === 1 ? { ...to, share } : {
        ...to, share: mix(from.share, share, part), values: to.values.map((value, place) => mix(from.values[place], value, part)) };
      this.paint();
      if (part < 1) requestAnimationFrame(frame);
    };
    this.going = to;
    frame(begun);
  }

  /* Draw the map over the picture. */
  paint() {
    if (!this.photo.complete) return void this.photo.decode().then(() => this.paint(), () => {});
    this.canvas ??= canvasOver(this.view, this.photo);
    overlay(this.canvas, chosen.view, this.now, this.now.share);
  }
}

const viewers = new Map([...document.querySelectorAll("figure")].map(figure => [figure, new Viewer(figure)]));

const near = new IntersectionObserver(entries => entries.forEach(({ isIntersecting, target }) => {
  if (!isIntersecting) return;
  near.unobserve(target);
  viewers.get(target).settle();  // not before: a page may have thousands of pictures, each with a canvas
}), { rootMargin: "100%" });
viewers.forEach((viewer, figure) => near.observe(figure));
changed.push(() => viewers.forEach(viewer => viewer.redraw()));

document.addEventListener("pointerdown", event => {  // a tap elsewhere returns to the word at rest
  if (!event.target.closest(".word, button, .dials, .tools")) rest();
});
document.addEventListener("keydown", event => event.key === "Escape" && rest());

function rest() {
  document.activeElement?.blur();
  viewers.forEach(viewer => { viewer.stop(true); viewer.pin(null); });
}

addEventListener("pointermove", () => document.body.classList.add("moving"), { once: true });

function follow() {  // page.html#image-3-word-5
  const word = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const viewer = word?.matches(".word") && viewers.get(word.closest("figure"));
  if (!viewer) return;
  word.closest("figure").scrollIntoView({ block: "nearest" });
  viewer.pin(word);
}
addEventListener("hashchange", follow);
follow();
