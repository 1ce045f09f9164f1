/* A map over a picture, in four views, as viz/overlay/views.py draws it, which says what they are, and gives the constants. */
const drawn = (({ ramp, opacity, held, line, veil }) => ({
  ramp: ramp.split(" ").map(colour => [1, 3, 5].map(place => parseInt(colour.slice(place, place + 2), 16))),
  opacity: +opacity, held: held.split(" ").map(Number), line: +line, veil: +veil,
}))(document.querySelector("[data-ramp]").dataset);
const FINE = 112;  // places per axis for which a map is worked out; the canvas smooths between them
const WIDE = 6;  // times as many along the frames of a film

/* How much of each region's weight, along one axis, reaches each place: 1 at its centre, 0 at those of its neighbours.
   The regions lie from `low` to `high`, in shares of the picture, or of each of several frames side by side. */
function reach(regions, low, high, frames = 1) {
  const fine = FINE * (frames > 1 ? WIDE : 1);
  return Array.from({ length: fine }, (_, place) => {
    const at = (((place + .5) / fine * frames % 1) - low) * regions / (high - low) - .5;
    const near = Math.min(Math.max(at, 0), regions - 1);
    return Array.from({ length: regions }, (_, region) => {
      const close = Math.max(0, 1 - Math.abs(near - region));
      return close * close * (3 - 2 * close);
    });
  });
}

/* A map of one byte per region, the one that begins at this byte of many: its cells, and its values in [0, 1] on FINE
   rows of places. */
function mapOf(maps, start, rows, columns, extent, frames = 1) {
  const text = atob(maps).slice(start, start + frames * rows * columns);
  const cells = Uint8Array.from(text, letter => letter.charCodeAt(0));
  const [left, top, right, bottom] = extent.split(" ").map(Number);
  const down = reach(rows, top, bottom), across = reach(columns, left, right, frames), fine = across.length;
  const values = new Float32Array(FINE * fine);
  for (let y = 0; y < FINE; y++) {
    const line = new Float32Array(frames * columns);
    for (let f = 0; f < frames; f++)
      for (let r = 0; r < rows; r++)
        for (let c = 0; c < columns; c++)
          line[f * columns + c] += down[y][r] * cells[(f * rows + r) * columns + c] / 255;
    for (let x = 0; x < fine; x++) {
      const first = Math.floor(x / fine * frames) * columns;
      for (let c = 0; c < columns; c++) values[y * fine + x] += across[x][c] * line[first + c];
    }
  }
  return { cells, values, fine, rows, columns, frames, edges: [left, top, right, bottom] };
}

/* The colour of a value in [0, 1]. */
function colourOf(value) {
  const place = Math.min(Math.max(value, 0), 1) * (drawn.ramp.length - 1), first = Math.min(Math.floor(place), drawn.ramp.length - 2);
  return drawn.ramp[first].map((low, channel) => low + (drawn.ramp[first + 1][channel] - low) * (place - first));
}

/* The values down to which the smallest regions reach that hold these shares of the total. */
function levelsOf(values) {
  const ordered = Float32Array.from(values).sort().reverse(), total = ordered.reduce((sum, value) => sum + value, 0);
  return drawn.held.map(share => {
    let sum = 0, place = 0;
    while (place < ordered.length - 1 && (sum += ordered[place]) < share * total) place++;
    return ordered[place];
  });
}

const views = {
  /* The picture under a white veil, kept where the light falls; the darkened picture is the image below. */
  light(brush, map, share) {
    const { width, height } = brush.canvas;
    brush.canvas.picture(brush);
    brush.globalCompositeOperation = "source-atop";
    brush.fillStyle = `rgb(255 255 255 / ${map.rows * map.columns > 1 ? drawn.veil : 0})`;  // a whole frame needs no veil to be told apart
    brush.fillRect(0, 0, width, height);
    brush.globalCompositeOperation = "destination-in";
    brush.drawImage(mask(map, value => [0, 0, 0, 255 * value * share]), 0, 0, width, height);
  },

  color(brush, map, share) {
    const colours = mask(map, value => [...colourOf(value * share), 255 * drawn.opacity * value * share]);
    brush.drawImage(colours, 0, 0, brush.canvas.width, brush.canvas.height);
  },

  cells(brush, map, share) {
    const { width, height } = brush.canvas, [left, top, right, bottom] = map.edges;
    const lines = (number, low, high) => Array.from({ length: number + 1 }, (_, place) =>  // those at the border reach to it
      place === 0 ? 0 : place === number ? 1 : Math.min(Math.max(low + (high - low) * place / number, 0), 1));
    const x = lines(map.columns, left, right), y = lines(map.rows, top, bottom);
    map.cells.forEach((byte, place) => {
      const column = place % map.columns, row = Math.floor(place / map.columns) % map.rows;
      const frame = Math.floor(place / map.columns / map.rows), value = byte / 255 * share;
      const [x0, x1] = [x[column], x[column + 1]].map(edge => Math.round((frame + edge) / map.frames * width));
      const [y0, y1] = [y[row], y[row + 1]].map(edge => Math.round(edge * height));
      brush.fillStyle = `rgb(${colourOf(value).map(Math.round).join(" ")} / ${drawn.opacity * value})`;
      brush.fillRect(x0, y0, x1 - x0, y1 - y0);
    });
  },

  contours(brush, map) {
    const { width, height } = brush.canvas, thick = Math.max(2, drawn.line * Math.max(width / map.frames, height));
    Object.assign(brush, { lineCap: "round", lineJoin: "round" });
    levelsOf(map.values).forEach((level, place) => {
      const border = level > 0 ? contour(map, level * (1 - 1e-4), width, height) : new Path2D();
      for (const [colour, times] of [["#000", 2], ["#fff", 1]]) {
        Object.assign(brush, { strokeStyle: colour, lineWidth: times * thick / (place + 1) });
        brush.stroke(border);
      }
    });
  },
};

/* A small canvas with the colour of each value. */
function mask(map, colour) {
  const small = Object.assign(document.createElement("canvas"), { width: map.fine, height: FINE });
  const ink = small.getContext("2d"), points = ink.createImageData(map.fine, FINE);
  map.values.forEach((value, place) => points.data.set(colour(value).map(Math.round), 4 * place));
  ink.putImageData(points, 0, 0);
  return small;
}

/* The line where values cross a level: marching squares, one segment after the other. */
function contour({ values, fine }, level, width, height) {
  const path = new Path2D(), at = (x, y) => values[y * fine + x] - level;
  const point = (x, y, dx, dy) => {  // where the side from this place to its neighbour is crossed
    const first = at(x, y), share = first / (first - at(x + dx, y + dy));
    return [(x + .5 + dx * share) / fine * width, (y + .5 + dy * share) / FINE * height];
  };
  for (let y = 0; y < FINE - 1; y++)
    for (let x = 0; x < fine - 1; x++) {
      const inside = [at(x, y), at(x + 1, y), at(x + 1, y + 1), at(x, y + 1)].map(value => value >= 0);
      const sides = [[x, y, 1, 0], [x + 1, y, 0, 1], [x, y + 1, 1, 0], [x, y, 0, 1]]
        .filter((_, side) => inside[side] !== inside[(side + 1) % 4]).map(side => point(...side));
      for (let side = 0; side + 1 < sides.length; side += 2) {
        path.moveTo(...sides[side]);
        path.lineTo(...sides[side + 1]);
      }
    }
  return path;
}

/* A canvas over the part of a picture that the model saw. */
function canvasOver(view, photo) {
  const [left, top, right, bottom] = (view.dataset.seen || "0 0 1 1").split(" ").map(Number);
  const wide = Math.round(photo.naturalWidth * (right - left)), high = Math.round(photo.naturalHeight * (bottom - top));
  const canvas = document.createElement("canvas"), place = { left, top, width: right - left, height: bottom - top };
  canvas.width = Math.max(wide, 448);
  canvas.height = Math.round(canvas.width * high / wide);
  Object.entries(place).forEach(([name, value]) => { canvas.style[name] = `${100 * value}%`; });
  canvas.picture = brush => {
    brush.imageSmoothingEnabled = getComputedStyle(photo).imageRendering !== "pixelated";
    brush.drawImage(photo, left * photo.naturalWidth, top * photo.naturalHeight, wide, high, 0, 0, canvas.width, canvas.height);
    brush.imageSmoothingEnabled = true;
  };
  photo.after(canvas);
  return canvas;
}

/* Draw a map on such a canvas. `share`: of its largest weight in the end of the scale. */
function overlay(canvas, view, map, share) {
  const brush = canvas.getContext("2d");
  brush.globalCompositeOperation = "source-over";
  brush.clearRect(0, 0, canvas.width, canvas.height);
  Object.assign(brush, { imageSmoothingEnabled: true, imageSmoothingQuality: "high" });
  views[view](brush, map, share);
}

/* The view and the scale that the reader chose. `changed` is called after each change. */
const chosen = Object.fromEntries([...document.querySelectorAll(".tools input:checked")].map(({ name, value }) => [name, value]));
const changed = [];

function choose(name, value) {
  const choice = [...document.querySelectorAll(`.tools input[name=${name}]`)].find(input => input.value === value);
  if (!choice) return;
  choice.checked = true;
  chosen[name] = value;
  document.body.dataset[name] = value;
  changed.forEach(act => act());
}

/* Choose the next one; a page that holds this one in a frame may choose it for all frames. */
function turnTo(name) {
  const all = [...document.querySelectorAll(`.tools input[name=${name}]`)];
  if (all.length) tell(name, all[(all.findIndex(input => input.checked) + 1) % all.length].value);
}

function tell(name, value) {
  choose(name, value);
  try { if (parent !== window) parent.postMessage({ attention: name, value }, "*"); } catch { /* no page around this one */ }
}

Object.entries(chosen).forEach(([name, value]) => { document.body.dataset[name] = value; });
document.querySelector(".tools")?.addEventListener("change", ({ target }) => tell(target.name, target.value));
document.addEventListener("keydown", event => {
  const name = { v: "view", s: "scale" }[event.key];
  if (name && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.matches?.("input[type=text], select, textarea")) turnTo(name);
});
addEventListener("message", ({ data }) => data?.attention && choose(data.attention, data.value));
