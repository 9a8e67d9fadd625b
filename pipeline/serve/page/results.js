// Hits: passages as a list, pictures and pages as a grid.

import { folder, h, marked, notes, number, withWidth } from "./dom.js";

const isPicture = (hit) => hit.modality === "image" || hit.modality === "page";

export function results(found, open, { seconds, query }) {
  const { hits } = found;
  return [notes(found.notes), ...listed(hits, open, seconds, query)].filter(Boolean);
}

function listed(hits, open, seconds, query) {
  const pictures = hits.filter(isPicture);
  const texts = hits.filter((hit) => !isPicture(hit));
  if (!hits.length) return empty(query);
  const count = h("p", { class: "count" }, `${number(hits.length, "hit")} in ${seconds.toFixed(2)} s`);
  if (!texts.length) return [count, grid(pictures, open)];
  if (!pictures.length) return [count, list(texts, open)];
  const first = pictures[0].rank < texts[0].rank;
  return [count, h("div", { class: first ? "both pictures-first" : "both" },
    h("section", { "aria-labelledby": "head-texts" }, h("h2", { class: "head", id: "head-texts" }, "Passages"), list(texts, open)),
    h("section", { class: "side", "aria-labelledby": "head-pictures" },
      h("h2", { class: "head", id: "head-pictures" }, "Pictures"), grid(pictures, open)))];
}

function list(hits, open) {
  return h("ol", { class: "list" }, hits.map((hit) => h("li", {}, passage(hit, open))));
}

function passage(hit, open) {
  const [start, end] = hit.excerpt;
  const total = Array.from(hit.text).length;
  const place = [folder(hit.path), hit.title ? hit.name : null].filter(Boolean).join("/");
  return h("button", { class: "hit", type: "button", "data-label": hit.label, onclick: () => open(hit) },
    h("span", { class: "kicker" }, h("b", {}, place),
      hit.page !== null && hit.n_pages !== 1 ? `page ${hit.page}` : null,
      hit.row !== null ? `row ${hit.row}` : null,
      h("span", { class: "tag" }, hit.modality === "table" ? `table, ${hit.type}` : hit.type)),
    h("span", { class: "name" }, hit.title || hit.name),
    h("span", { class: hit.modality === "table" || hit.row !== null ? "words lines" : "words" }, start > 0 ? "… " : null, marked(hit.text, start, end, hit.lit), end < total ? " …" : null),
    hit.duplicates.length ? h("span", { class: "twins" }, `and ${hit.duplicates.length} like it`) : null);
}

function grid(hits, open) {
  return h("ul", { class: "grid" }, hits.map((hit) => h("li", {},
    h("button", { class: `tile ${hit.modality}`, type: "button", "data-label": hit.label, onclick: () => open(hit) },
      h("img", { src: withWidth(hit.picture, 480), alt: "", loading: "lazy", decoding: "async" }),
      h("span", {}, hit.page !== null && hit.n_pages > 1 ? `${hit.name}, page ${hit.page}` : hit.name)))));
}

function empty(query) {
  return [h("div", { class: "notice" }, h("b", {}, "Nothing found"),
    query ? "Try other words, another kind, or a wider filter." : "Nothing in the index is like this picture.")];
}
