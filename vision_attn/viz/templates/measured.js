"use strict";
{% include "overlay.js" %}

const maps = [...document.querySelectorAll(".view")].map(view => {
  const { map, rows, columns, extent } = view.dataset;
  return { photo: view.querySelector("img"), map: mapOf(map, 0, +rows, +columns, extent) };
});

async function draw(one) {
  const { photo } = one;
  await photo.decode().catch(() => {});
  if (!one.canvas) {
    one.canvas = Object.assign(document.createElement("canvas"), { width: photo.naturalWidth, height: photo.naturalHeight });
    photo.after(one.canvas);
  }
  const brush = one.canvas.getContext("2d");
  overlay(one.canvas, chosen.view, one.map, 1, () => brush.drawImage(photo, 0, 0));
}

changed.push(() => maps.forEach(draw));
maps.forEach(draw);
