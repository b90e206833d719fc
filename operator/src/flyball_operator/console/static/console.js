// Sliders that answer as they move. Without this, the button asks.
"use strict";

const form = document.getElementById("objectives");
const answer = document.getElementById("answer");
let waiting = 0;
let asking = new AbortController();

async function ask() {
  asking.abort();
  asking = new AbortController();
  const query = new URLSearchParams(new FormData(form));
  try {
    // A proxy whose login has ended would lead to another host, which pages may not ask.
    const response = await fetch(`${form.getAttribute("action")}?${query}`, { signal: asking.signal, redirect: "error" });
    const found = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("answer");
    if (!found) throw new Error(`status ${response.status}`);
    answer.replaceChildren(...document.importNode(found, true).childNodes);
  } catch (error) {
    // fetch() throws a TypeError where it is not answered, or led elsewhere.
    const hint = error instanceof TypeError ? " Load this page again: a login may have ended." : "";
    if (error.name !== "AbortError") answer.textContent = `No answer: ${error.message}.${hint}`;
  }
}

if (form) {
  form.addEventListener("input", (event) => {
    document.querySelector(`output[for="${event.target.id}"]`).textContent = event.target.value;
    clearTimeout(waiting);
    waiting = setTimeout(ask, 150);
  });
}
