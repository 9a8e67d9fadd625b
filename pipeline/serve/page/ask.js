// A question: what is found, what is drafted, the checked answer, its citations and its trace.

import { events } from "./api.js";
import { folder, h, number, problem, say, slice, withWidth } from "./dom.js";

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
  return [body, sources(data, open), trace(data, open)].filter(Boolean);
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

const percent = (x) => `${Math.round(100 * x)}%`;
const stage = (name, note, ...children) => h("section", { class: "stage" }, h("h3", {}, name, note ? h("small", {}, note) : null), children);

// every stage, from what was found to what was kept
function trace(data, open) {
  const t = data.trace;
  if (!t) return null;
  const parts = [found(data, t, open)];
  if (t.evidence) parts.push(evidence(t.evidence, data.hits));
  const known = new Set(["hits", "evidence", "generation", "cite", "answerable", "mode", "held_back", "nearest", "refused_because", "prompt"]);
  for (const [name, value] of Object.entries(t)) if (!known.has(name)) parts.push(stage(label(name), "", h("pre", {}, JSON.stringify(value, null, 1))));
  if (t.prompt) parts.push(stage("Shown to the reader", "", h("pre", {}, JSON.stringify(t.prompt, null, 1))));
  if (t.generation) parts.push(stage("Written", `${t.generation.generator ?? ""} ${t.generation.seconds !== undefined ? `${t.generation.seconds} s` : ""}, ended by: ${t.generation.stopped}`, h("pre", {}, t.generation.text || t.generation.detail || "")));
  if (t.cite) parts.push(stage("Checked against the sources", number(t.cite.dropped.length, "sentence") + " dropped, " + number(t.cite.markers_removed, "false marker") + " removed",
    t.cite.dropped.length ? h("ul", {}, t.cite.dropped.map((d) => h("li", {}, `“${d.sentence}”: ${d.reason}`))) : null));
  if (t.answerable) parts.push(stage("Is the answer in there?", `${percent(t.answerable.score)}, at least ${percent(t.answerable.threshold)} is needed`));
  if (t.held_back) parts.push(stage("Held back", t.held_back.reason, h("p", {}, t.held_back.text)));
  if (t.mode) parts.push(stage("Result", { extractive: "in the sources' own words", generated: "written by the reader, each sentence checked", refused: `not answered: ${t.refused_because ?? ""}` }[t.mode] ?? t.mode));
  return h("details", { class: "trace", id: "trace" }, h("summary", {}, "How this answer was made"), parts);
}

const label = (name) => name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");

function found(data, t, open) {
  const hits = data.hits ?? [];
  const stages = [...new Set(hits.flatMap((hit) => Object.keys(hit.scores)))];
  const evidence = new Map((t.hits ?? []).map((x) => [x.label, x.evidence]));
  const row = (hit) => h("tr", {}, h("td", {}, h("button", { type: "button", onclick: () => open(hit) }, hit.page !== null && hit.n_pages > 1 ? `${hit.name}, page ${hit.page}` : hit.name)),
    stages.map((s) => h("td", {}, hit.scores[s] === undefined ? "–" : hit.scores[s].toFixed(3))),
    h("td", {}, hit.score.toFixed(3)), h("td", {}, evidence.get(hit.label) == null ? "–" : evidence.get(hit.label).toFixed(2)));
  return stage("Found", number(hits.length, "hit"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Hits and their scores" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Hit", ...stages, "score", "evidence"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, hits.map(row)))));
}

function evidence(found, hits) {
  const texts = new Map((hits ?? []).map((hit) => [hit.label, hit]));
  const quote = (c) => {
    const hit = texts.get(c.label);
    return hit && hit.span ? slice(hit.text, c.span[0] - hit.span[0], c.span[1] - hit.span[0]) : c.label;
  };
  return stage("Evidence", `${number(found.sentences ?? 0, "sentence")} compared; the question asks for: ${found.asks_for ?? "anything"}`,
    h("ol", {}, (found.chosen ?? []).map((c) => h("li", {}, h("p", {}, `${c.score.toFixed(3)}  “${quote(c).trim()}”`)))));
}
