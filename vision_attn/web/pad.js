"use strict";
/* A place on a picture, in [-1, 1] of it: a point (x, y), or where `boxes` are drawn (x0, y0, x1, y1). It follows the mouse
   or a finger; by keyboard, arrow keys move it (with Shift a little), and + and - change its size. `taken` is called
   for a click without `boxes`, and for Enter; `changed` after each change. */
class Pad {
  constructor(node, { boxes = false, changed = () => {}, taken = () => {} }) {
    Object.assign(this, { node, boxes, changed, x: 0, y: 0, wide: 0, high: 0 });  // half of a width and a height
    this.mark = Object.assign(document.createElement("b"), { className: "mark" });
    node.append(this.mark);
    node.addEventListener("pointerdown", event => {
      event.preventDefault();
      node.focus({ focusVisible: false });
      node.setPointerCapture?.(event.pointerId);
      this.set(...this.from = this.at(event));
    });
    node.addEventListener("pointermove", event => {
      if (!this.from || !boxes) return;
      const here = this.at(event), reach = here.map((end, axis) => Math.abs(end - this.from[axis]) / 2);
      if (Math.min(...reach) > .02) this.set(...here.map((end, axis) => (end + this.from[axis]) / 2), ...reach);
    });
    for (const end of ["pointerup", "pointercancel"]) node.addEventListener(end, event => {
      const drawn = this.from;
      this.from = null;
      if (drawn && !boxes && event.type === "pointerup") taken();
    });
    node.addEventListener("keydown", event => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const step = event.shiftKey ? .02 : .1;
      const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      const more = boxes ? { "+": .05, "=": .05, "-": -.05 }[event.key] : 0;
      if (way) this.set(this.x + way[0] * step, this.y + way[1] * step, this.wide, this.high);
      else if (more) this.set(this.x, this.y, this.wide + more, this.high + more);
      else if (event.key === "Enter") taken();
      else return;
      event.preventDefault();
    });
    this.set(0, 0);
  }

  at(event) {
    const { left, top, width, height } = this.node.getBoundingClientRect();
    return [2 * (event.clientX - left) / width - 1, 2 * (event.clientY - top) / height - 1].map(at => Math.min(Math.max(at, -1), 1));
  }

  /* Move to a place; all of a box stays on the picture. */
  set(x, y, wide = 0, high = 0) {
    if (Math.min(wide, high) < .02) wide = high = 0;
    [this.wide, this.high] = [wide, high].map(half => Math.min(half, 1));
    this.x = Math.min(Math.max(x, this.wide - 1), 1 - this.wide);
    this.y = Math.min(Math.max(y, this.high - 1), 1 - this.high);
    Object.assign(this.mark.style, { left: `${50 * (1 + this.x)}%`, top: `${50 * (1 + this.y)}%`, width: `${100 * this.wide}%`, height: `${100 * this.high}%` });
    this.mark.classList.toggle("point", !wide);
    this.changed(this);
  }

  get value() {
    const { x, y, wide, high } = this;
    return (wide ? [x - wide, y - high, x + wide, y + high] : [x, y]).map(at => Math.min(Math.max(+at.toFixed(3), -1), 1));
  }

  get text() { return `${this.wide ? "box" : "point"} ${this.value.map(at => at.toFixed(2)).join(", ")}`; }
}
