/* Figures of unlike heights lie close to each other: each takes as many rows of the grid as it is high, and the next one
   goes into the highest free place, so that their order stays. */
const grid = document.querySelector("main.many");
const packed = grid && new ResizeObserver(entries => entries.forEach(({ target }) => {
  const row = parseFloat(getComputedStyle(grid).gridAutoRows), gap = parseFloat(getComputedStyle(grid).columnGap);
  target.style.gridRowEnd = `span ${Math.ceil((target.getBoundingClientRect().height + gap) / row)}`;
}));
if (grid) {
  grid.classList.add("packed");
  grid.querySelectorAll("figure").forEach(figure => packed.observe(figure));
}
