"use strict";
/* Which words of two captions differ: those outside of their longest common sequence of words. */
function different(old, now) {
  const common = Array.from({ length: old.length + 1 }, () => new Array(now.length + 1).fill(0));
  for (let i = old.length - 1; i >= 0; i--) for (let j = now.length - 1; j >= 0; j--)
    common[i][j] = old[i] === now[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const changed = [old.map(() => true), now.map(() => true)];
  for (let i = 0, j = 0; i < old.length && j < now.length;) {
    if (old[i] === now[j]) changed[0][i++] = changed[1][j++] = false;
    else common[i + 1][j] >= common[i][j + 1] ? i++ : j++;
  }
  return changed;
}

/* A caption with some of its words marked. */
const marked = (words, marks) => words.flatMap((word, number) =>
  [number ? " " : "", marks[number] ? Object.assign(document.createElement("mark"), { textContent: word }) : word]);

/* Below a caption, a form that makes its model look elsewhere. `place` begins with the old caption's heading; `result` is
   its answer, `picture` the photograph's element, `ask(attend, strength)` a promise of another answer, and `show(result)` shows maps. */
function elsewhere(place, { name, result, picture, ask, show }) {
  const form = document.getElementById("elsewhere").content.firstElementChild.cloneNode(true), old = result.words.map(one => one.word);
  const head = place.querySelector("h3"), words = form.querySelector(".choose"), said = form.querySelector(".said"), back = form.querySelector(".back");
  const strength = form.querySelector("[name=strength]"), told = form.querySelector("output"), now = document.createElement("h3");
  const first = Math.max(old.findIndex(word => word.length > 3), 0);
  now.className = "now";
  words.append(...old.map((word, number) => {
    const label = document.createElement("label"), input = Object.assign(document.createElement("input"), { type: "radio", name: "word", value: number + 1 });
    input.checked = number === first;
    label.append(input, Object.assign(document.createElement("span"), { textContent: word }));
    return label;
  }));
  const node = form.querySelector(".place");
  node.prepend(picture.cloneNode());
  node.style.setProperty("--shape", picture.naturalWidth / picture.naturalHeight);
  const pad = new Pad(node, { boxes: true, changed: pad => { told.textContent = pad.text; }, taken: () => form.requestSubmit() });

  form.addEventListener("submit", async event => {
    event.preventDefault();
    const word = +new FormData(form).get("word"), asked = form.asked = {};
    said.textContent = "looking ...";
    const found = await ask({ [word]: pad.value }, strength.value);
    if (asked !== form.asked || !form.isConnected) return;
    said.classList.toggle("error", "error" in found);
    said.textContent = found.error ?? (found.text === result.text ? "The caption stays as it is." : "");
    if (found.error) return;
    const said_words = found.words.map(one => one.word), changed = different(old, said_words);
    head.replaceChildren(`${name}: `, ...marked(old, changed[0]));
    now.replaceChildren(`made to look there for “${old[word - 1]}”: `, ...marked(said_words, changed[1]));
    head.after(now);
    head.scrollIntoView({ block: "nearest" });
    back.hidden = false;
    show(found);
  });
  back.addEventListener("click", () => {
    form.asked = null;
    head.textContent = `${name}: ${result.text}`;
    now.remove();
    said.textContent = "";
    back.hidden = true;
    show(result);
    node.focus();
  });
  place.append(form);
}
