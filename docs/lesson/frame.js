/* What all pages share: turning pages, sliders, drawing, and layers of networks. */
const lesson = { pages: {}, errors: [] };
addEventListener("error", event => lesson.errors.push(event.message));

/* A page: `start(section)` is called when it is first shown, and returns { draw, check }: `draw` is called whenever the
   page has another size, `check(input)` returns numbers for the test of the page. */
lesson.page = (name, start) => { lesson.pages[name] = { start, section: document.getElementById(name) }; };

lesson.ready = name => {
  const page = lesson.pages[name];
  if (page.start) { const start = page.start; page.start = null; Object.assign(page, start(page.section)); }
  return page;
};

lesson.check = (name, input) => lesson.ready(name).check(input);

lesson.data = name => JSON.parse(document.getElementById(`data-${name}`).textContent);

lesson.open = () => {
  const names = Object.keys(lesson.pages), nav = document.querySelector("nav");
  names.forEach((name, number) => {
    const title = lesson.pages[name].section.querySelector("h1").textContent;
    nav.append(Object.assign(document.createElement("a"), { href: `#${number + 1}`, textContent: number + 1, title, ariaLabel: `${number + 1}: ${title}` }));
  });
  const title = number => `${number + 1}. ${lesson.pages[names[number]].section.querySelector("h1").textContent}`;
  const turn = () => {
    const number = Math.min(Math.max((parseInt(location.hash.slice(1)) || 1) - 1, 0), names.length - 1);
    names.forEach((name, one) => { lesson.pages[name].section.hidden = one !== number; });
    [...nav.children].forEach((link, one) => one === number ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current"));
    for (const [selector, to, text] of [[".before", number - 1, "←\u00a0"], [".after", number + 1, "\u00a0→"]]) {
      const link = document.querySelector(`footer ${selector}`), there = to in names;
      link.textContent = !there ? "" : to < number ? text + title(to) : title(to) + text;
      there ? link.setAttribute("href", `#${to + 1}`) : link.removeAttribute("href");
    }
    lesson.now = names[number];
    lesson.ready(lesson.now).draw();
    scrollTo(0, 0);
  };
  lower();
  addEventListener("hashchange", turn);
  addEventListener("keydown", event => {
    if (event.target.closest("input, select, canvas, svg [tabindex], [role=group]") || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 }[event.key], to = names.indexOf(lesson.now) + step;
    if (event.key.startsWith("Arrow") && to in names) { event.preventDefault(); location.hash = to + 1; }
  });
  const main = document.querySelector("main");
  let width;
  new ResizeObserver(() => { if (width !== main.clientWidth) { width = main.clientWidth; requestAnimationFrame(() => lesson.pages[lesson.now].draw()); } }).observe(main);
  turn();
};

/* Without a font for equations some browsers leave an index on the line of its letter: have the style lower it. */
function lower() {
  const letter = document.createElementNS("http://www.w3.org/1998/Math/MathML", "math");
  letter.innerHTML = "<msub><mi>x</mi><mi>x</mi></msub>";
  document.body.append(letter);
  const [base, index] = [...letter.querySelectorAll("mi")].map(one => one.getBoundingClientRect());
  document.body.classList.toggle("flat", index.bottom - base.bottom < .1 * base.height);
  letter.remove();
}

/* The sliders of a section by name, as numbers; `changed` is called after each change. `data-digits` of a slider says how
   many digits its <output> shows. */
function sliders(section, changed) {
  const inputs = [...section.querySelectorAll("input[type=range]")];
  const tell = input => {
    const output = input.parentElement.querySelector("output");
    if (output) output.textContent = (+input.value).toFixed(input.dataset.digits ?? 0);
  };
  const values = {
    set(name, value) { const input = inputs.find(one => one.name === name); input.value = value; tell(input); },
  };
  inputs.forEach(input => {
    Object.defineProperty(values, input.name, { get: () => +input.value });
    input.addEventListener("input", () => { tell(input); changed(input.name); });
    tell(input);
  });
  return values;
}

/* An element of SVG. */
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/* A chart in an <svg>, in pixels of the screen: `x` and `y` are the ranges that it shows. */
class Chart {
  constructor(node, { x, y, height = .6, least = 0, most = 460, margin = [14, 12, 28, 44] }) {
    this.node = node;
    [this.top, this.right, this.bottom, this.left] = margin;
    this.width = node.parentElement.clientWidth - parseFloat(getComputedStyle(node.parentElement).paddingLeft) * 2;
    this.height = Math.round(clamp(this.width * height, least, most));
    node.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    node.style.height = `${this.height}px`;
    node.replaceChildren();
    Object.assign(this, { xs: x, ys: y });
  }
  x(value) { return this.left + (value - this.xs[0]) / (this.xs[1] - this.xs[0]) * (this.width - this.left - this.right); }
  y(value) { return this.height - this.bottom - (value - this.ys[0]) / (this.ys[1] - this.ys[0]) * (this.height - this.top - this.bottom); }
  at(event) {  // the place of a pointer, in the units of the chart
    const box = this.node.getBoundingClientRect();
    return [this.xs[0] + (event.clientX - box.left - this.left) / (this.width - this.left - this.right) * (this.xs[1] - this.xs[0]),
            this.ys[0] - (event.clientY - box.top - this.height + this.bottom) / (this.height - this.top - this.bottom) * (this.ys[1] - this.ys[0])];
  }
  add(tag, attributes, ...children) { const node = svg(tag, attributes, ...children); this.node.append(node); return node; }
  text(x, y, text, attributes = {}) { return this.add("text", { x, y, ...attributes }, text); }
  axes({ x = [], y = [], xName = "", yName = "", xText = String, yText = String }) {
    for (const value of y) {
      this.add("line", { class: "grid", x1: this.left, x2: this.width - this.right, y1: this.y(value), y2: this.y(value) });
      this.text(this.left - 8, this.y(value) + 4, yText(value), { "text-anchor": "end" });
    }
    for (const value of x) this.text(this.x(value), this.height - this.bottom + 17, xText(value), { "text-anchor": "middle" });
    this.add("line", { class: "axis", x1: this.left, x2: this.width - this.right, y1: this.height - this.bottom, y2: this.height - this.bottom });
    if (xName) this.text(this.width - this.right, this.height - this.bottom - 7, xName, { "text-anchor": "end" });
    if (yName) this.text(this.left + 4, this.top + 2, yName);
  }
  path(points) { return points.map(([x, y], number) => `${number ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`).join(""); }
  curve(points, kind = "", attributes = {}) { return this.add("path", { class: `curve ${kind}`, d: this.path(points), ...attributes }); }
}

/* Add a round handle that is dragged with the mouse or a finger, or moved by arrow keys in steps (x, y). Charts are drawn
   again while it moves, so the drawing itself listens, and finds the handle by its name. `move(x, y)` gets places, `value()`
   is for people who do not see it. */
Chart.prototype.handle = function (name, x, y, { label, value, step = [0, 0], move, kind = "", radius = 9 }) {
  const chart = this, drawing = this.node, { handles = {}, held } = drawing;
  const node = this.add("circle", { class: `handle ${kind}`, r: radius, cx: this.x(x), cy: this.y(y), tabindex: 0, role: "slider",
    "aria-label": label, "aria-valuetext": value, "aria-valuenow": parseFloat(value) || 0, "data-handle": name });
  handles[name] = { chart, x, y, step, move };
  drawing.handles = handles;
  if (held === name) node.focus({ focusVisible: drawing.keyed });
  if (drawing.listens) return;
  drawing.listens = true;
  const found = event => event.target.closest("[data-handle]")?.dataset.handle;
  drawing.addEventListener("focusin", event => { drawing.held = found(event); });
  drawing.addEventListener("focusout", event => { if (event.relatedTarget) drawing.held = null; });
  drawing.addEventListener("pointerdown", event => {
    if (!found(event)) return;
    event.preventDefault();
    drawing.keyed = false;
    drawing.dragged = found(event);
    event.target.focus({ focusVisible: false });
    drawing.setPointerCapture(event.pointerId);
  });
  drawing.addEventListener("pointermove", event => {
    if (!drawing.dragged) return;
    const { chart, move } = drawing.handles[drawing.dragged];
    move(...chart.at(event));
  });
  for (const end of ["pointerup", "pointercancel"]) drawing.addEventListener(end, () => { drawing.dragged = null; });
  drawing.addEventListener("keydown", event => {
    const way = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key], name = found(event);
    if (!way || !name) return;
    event.preventDefault();
    drawing.keyed = true;
    const { x, y, step, move } = drawing.handles[name];
    move(x + way[0] * step[0], y + way[1] * step[1]);
  });
};

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const range = (count, make = number => number) => Array.from({ length: count }, (_, number) => make(number));
const sum = values => values.reduce((a, b) => a + b, 0);
const sigmoid = x => 1 / (1 + Math.exp(-x));
const softmax = (scores, temperature = 1) => {
  const most = Math.max(...scores), powers = [...scores].map(score => Math.exp((score - most) / temperature)), total = sum(powers);
  return powers.map(power => power / total);
};

/* Random numbers in [0, 1) that are the same for the same seed (mulberry32). */
const random = seed => () => {
  seed = (seed + 0x6D2B79F5) | 0;
  let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
};

const bytes = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));

/* A weight as `packed` of data.py keeps it: numbers, or a level for each weight and a scale for each row. */
function weight({ shape, numbers, scale, levels }) {
  if (numbers) return Object.assign(Float32Array.from(numbers), { shape });
  const found = new Float32Array(levels.length), wide = levels.length / shape[0];
  for (let one = 0; one < found.length; one++) {
    const code = levels.charCodeAt(one);
    found[one] = (code - 35 - (code > 60) - (code > 92) - 44) * scale[Math.floor(one / wide)];
  }
  return Object.assign(found, { shape });
}
const weights = kept => Object.fromEntries(Object.entries(kept).map(([name, one]) => [name, weight(one)]));

/* W x + b. */
function linear(of, name, x) {
  const w = of[`${name}.weight`], b = of[`${name}.bias`], [rows, columns] = w.shape, found = new Float64Array(rows);
  for (let row = 0; row < rows; row++) {
    let total = b ? b[row] : 0;
    for (let column = 0; column < columns; column++) total += w[row * columns + column] * x[column];
    found[row] = total;
  }
  return found;
}
const relu = x => x.map(value => Math.max(value, 0));
function joined(...parts) {
  const found = new Float64Array(sum(parts.map(part => part.length)));
  let start = 0;
  for (const part of parts) { found.set(part, start); start += part.length; }
  return found;
}

/* A convolution of `x`, `channels` images of height x width one after the other. */
function convolution(of, name, x, [channels, height, width], { stride = [1, 1], padding = [1, 1] } = {}) {
  const w = of[`${name}.weight`], b = of[`${name}.bias`], [filters, , tall, wide] = w.shape;
  const rows = Math.floor((height + 2 * padding[0] - tall) / stride[0]) + 1, columns = Math.floor((width + 2 * padding[1] - wide) / stride[1]) + 1;
  const found = new Float64Array(filters * rows * columns);
  for (let f = 0; f < filters; f++) for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
    let total = b ? b[f] : 0;
    for (let k = 0; k < channels; k++) for (let i = 0; i < tall; i++) {
      const y = r * stride[0] + i - padding[0];
      if (y < 0 || y >= height) continue;
      for (let j = 0; j < wide; j++) {
        const at = c * stride[1] + j - padding[1];
        if (at >= 0 && at < width) total += w[((f * channels + k) * tall + i) * wide + j] * x[(k * height + y) * width + at];
      }
    }
    found[(f * rows + r) * columns + c] = total;
  }
  return Object.assign(found, { size: [filters, rows, columns] });
}

/* An LSTM's [h, c] of its gates, in the given order of input, forget, output gate and candidate. */
function lstm(gates, cell, [i, f, o, g] = [0, 1, 2, 3]) {
  const n = cell.length, c = cell.map((value, k) => sigmoid(gates[f * n + k]) * value + sigmoid(gates[i * n + k]) * Math.tanh(gates[g * n + k]));
  return [c.map((value, k) => sigmoid(gates[o * n + k]) * Math.tanh(value)), c];
}

/* Intensities from 0 to 1 on a canvas, a pixel each; `colour` gives the red, green and blue of an intensity. */
function paint(canvas, values, width, height, colour = value => [value, value, value]) {
  canvas.width = width; canvas.height = height;
  const brush = canvas.getContext("2d"), image = brush.createImageData(width, height);
  for (let one = 0; one < width * height; one++) {
    const rgb = colour(values[one]);
    for (let k = 0; k < 3; k++) image.data[4 * one + k] = 255 * clamp(rgb[k], 0, 1);
    image.data[4 * one + 3] = 255;
  }
  brush.putImageData(image, 0, 0);
}

/* Pictures of digits: `digit(7, 2)` is the third picture of a seven, 784 intensities. */
const digit = (() => {
  let kept;
  return (label, turn = 0) => {
    kept ??= (({ each, pixels }) => ({ each, pixels: bytes(pixels) }))(lesson.data("digits"));
    const start = (label * kept.each + turn % kept.each) * 784;
    return Float64Array.from(kept.pixels.subarray(start, start + 784), value => value / 255);
  };
})();
