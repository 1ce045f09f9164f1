"use strict";
{% include "overlay.js" %}

const maps = [...document.querySelectorAll(".view")].map(view => {
  const { map, rows, columns, extent } = view.dataset;
  return { view, photo: view.querySelector("img"), map: mapOf(map, 0, +rows, +columns, extent) };
});

async function draw(one) {
  await one.photo.decode().catch(() => {});
  one.canvas ??= canvasOver(one.view, one.photo);
  overlay(one.canvas, chosen.view, one.map, 1);
}

changed.push(() => maps.forEach(draw));
maps.forEach(draw);
