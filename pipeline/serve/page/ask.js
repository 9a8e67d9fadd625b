// A question: what is found, what is drafted, the checked answer, its citations and its trace.

import { events } from "./api.js";
import { folder, h, notes, number, problem, say, withWidth } from "./dom.js";
import { trace } from "./trace.js";

export async function ask(main, body, open, signal) {
  const said = h("div", { class: "said draft", "aria-live": "off" });
  const pulse = h("p", { class: "pulse" }, h("i"), h("span", {}, "Looking …"));
  const article = h("article", { class: "answer", "aria-label": "Answer" }, pulse, said);
  main.replaceChildren(article);
  let hits = [];
  try {
    for await (const [name, data] of events("/api/ask", body, signal)) {
      if (name === "hits") {
        hits = data;
        pulse.lastChild.textContent = `Reading ${number(hits.length, "passage")} …`;
      } else if (name === "draft") {
        pulse.lastChild.textContent = "Writing a draft; it is checked against the sources when it ends …";
        said.append(data);
      } else if (name === "answer") {
        article.replaceChildren(...answer(data, open));
        say(data.answered ? `Answered with ${number(data.citations.length, "citation")}.` : "Not found in these documents.");
      } else if (name === "error") {
        article.replaceChildren(problem(data));
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") article.replaceChildren(problem(error));
  }
}

function answer(data, open) {
  const body = h("div", { class: data.answered ? "said" : "said refused", id: "said" });
  const cited = new Map(data.citations.map((c) => [c.marker, c]));
  for (const line of data.answer.split("\n").filter((l) => l.trim())) body.append(h("p", {}, pieces(line, cited, open)));
  return [notes(data.notes), body, sources(data, open), trace(data, open)].filter(Boolean);
}

// a line with each [n] that is a citation made a button that opens its place
function pieces(line, cited, open) {
  const out = [];
  for (const part of line.split(/(\[\d+\])/)) {
    const marker = /^\[(\d+)\]$/.exec(part);
    const citation = marker && cited.get(Number(marker[1]));
    if (citation) out.push(h("button", { class: "cite", type: "button", "data-marker": citation.marker,
      "aria-label": `Citation ${citation.marker}: ${citation.title || citation.name}`, title: citation.quote,
      onclick: () => open(citation) }, String(citation.marker)));
    else if (part) out.push(h("span", { class: "sentence" }, part));
  }
  return out;
}

function sources(data, open) {
  if (!data.citations.length) return null;
  const seen = new Set();
  const items = data.citations.filter((c) => !seen.has(`${c.marker} ${c.quote}`) && seen.add(`${c.marker} ${c.quote}`));
  return h("section", { class: "sources", "aria-labelledby": "head-sources" },
    h("h2", { class: "head", id: "head-sources" }, "Where this comes from"),
    h("ol", {}, items.map((c) => h("li", {}, h("button", { class: "source", type: "button", onclick: () => open(c) },
      h("span", { class: "n" }, String(c.marker)),
      h("span", {}, h("b", {}, c.title || c.name), " ",
        h("span", { class: "where" }, [folder(c.path), c.name].filter(Boolean).join("/"), c.page !== null ? `, page ${c.page}` : "", c.row !== null ? `, row ${c.row}` : ""),
        c.quote.trim() ? h("q", {}, c.quote.trim()) : null,
        c.picture && c.modality === "image" ? h("img", { src: withWidth(c.picture, 320), alt: c.name, loading: "lazy" }) : null))))));
}
