// A hit or a citation where it stands: the page or picture with its region lit, or the text.

import { get } from "./api.js";
import { $, fileOf, h, marked, number, problem, svg, withWidth } from "./dom.js";
import { styles } from "./markdown.js";

let shown = 0;

export async function view(label, span, query, actions) {
  const mine = ++shown;
  const dialog = $("viewer");
  if (!dialog.open) {
    dialog.replaceChildren(h("header", {}, h("div", {}, h("h2", { id: "viewer-name" }, "Opening …"))));
    dialog.showModal();
  }
  const asked = new URLSearchParams();
  if (span) asked.set("span", span);
  if (query) asked.set("q", query.slice(0, 4000));
  let place;
  try {
    place = await get(`/api/passages/${label}?${asked}`);
  } catch (error) {
    if (mine === shown) dialog.replaceChildren(head("Not here", "", actions), h("div", { class: "scrolls" }, problem(error)));
    return;
  }
  if (mine === shown) fill(dialog, place, actions);
}

export function close() {
  shown++;
  if ($("viewer").open) $("viewer").close();
}

function head(name, where, actions) {
  return h("header", {}, h("div", {}, h("h2", { id: "viewer-name", tabindex: "-1" }, name), h("p", { class: "where", title: where }, where)),
    h("button", { class: "close", type: "button", "aria-label": "Close", onclick: actions.close }, "×"));
}

function fill(dialog, place, actions) {
  const where = [fileOf(place.path), place.page !== null && place.n_pages > 1 ? `page ${place.page} of ${place.n_pages}` : null,
    place.row !== null ? `row ${place.row}` : null].filter(Boolean).join(" · ");
  const body = h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": "The place" });
  const picture = place.picture ? sheet(place) : null;
  const heat = picture && actions.heatFor && place.modality !== "text" && !place.boxes.length ? heatOver(picture, place, actions.heatFor) : null;
  const words = place.quote.trim() || !place.picture ? text(place) : null;
  body.append(...[picture, heat, words, facts(place), buttons(place, actions)].filter(Boolean));
  dialog.replaceChildren(head(place.title || place.name, where, actions), body);
  $("viewer-name").focus({ preventScroll: true });
  const lit = body.querySelector(".focus") ?? body.querySelector(".quote");
  if (lit && !picture) lit.scrollIntoView({ block: "center" });
}

// the page or picture, everything but the matched boxes in the shade
function sheet(place) {
  const boxes = place.boxes.filter((b) => b.page === place.page).map((b) => b.box);
  const image = h("img", { src: withWidth(place.picture, 1400), alt: place.quote.trim() ? `${place.name}: ${place.quote.slice(0, 300)}` : place.name });
  const figure = h("figure", { class: "sheet" }, image);
  image.addEventListener("error", () => figure.replaceWith(h("div", { class: "notice bad" }, "The file behind this is gone or has changed since it was indexed.")));
  if (boxes.length) {
    const holes = boxes.map(([x0, y0, x1, y1]) => `M${x0} ${y0}H${x1}V${y1}H${x0}Z`).join("");
    const frame = [Math.min(...boxes.map((b) => b[0])), Math.min(...boxes.map((b) => b[1])), Math.max(...boxes.map((b) => b[2])), Math.max(...boxes.map((b) => b[3]))];
    const pad = 0.006;
    figure.append(svg("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true", class: "lit-region" },
      svg("path", { class: "shade", d: `M0 0H1V1H0Z${holes}` }),
      svg("rect", { class: "frame", x: frame[0] - pad, y: frame[1] - pad, width: frame[2] - frame[0] + 2 * pad, height: frame[3] - frame[1] + 2 * pad })));
    image.addEventListener("load", () => {
      const scroller = figure.closest(".scrolls");
      const top = figure.offsetTop + frame[1] * image.clientHeight;
      if (scroller && top > scroller.clientHeight * 0.7) scroller.scrollTop = top - scroller.clientHeight / 3;
    });
  }
  return figure;
}

// a switch that lights the parts of a picture that the words are about and leaves the rest in the shade
function heatOver(figure, place, query) {
  const canvas = h("canvas", { class: "heat", "aria-hidden": "true", hidden: true });
  const button = h("button", { class: "button toggle", type: "button", "aria-pressed": "false" }, `Light “${query.length > 40 ? `${query.slice(0, 40)}…` : query}”`);
  const show = (on) => { canvas.hidden = !on; button.setAttribute("aria-pressed", String(on)); };
  button.addEventListener("click", () => show(canvas.hidden));
  get(`/api/passages/${place.label}/heat?q=${encodeURIComponent(query.slice(0, 4000))}`).then(({ heat }) => {
    canvas.height = heat.length;
    canvas.width = heat[0].length;
    const pixels = new ImageData(canvas.width, canvas.height);
    heat.flat().forEach((value, i) => { pixels.data.set([12, 10, 6, Math.round(190 * (1 - value))], 4 * i); });
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    figure.append(canvas);
    show(true);
  }).catch(() => button.remove());
  return h("p", { class: "switch" }, button);
}

// the passage in its surroundings; what answers is lit, the words that match are underlined
function text(place) {
  const [start, end] = place.focus;
  const [before, quote, after] = [place.before, place.quote, place.after].map((part) => tidy(part, place));
  const [ahead, total] = [before, quote].map((part) => Array.from(part).length);
  const all = place.type === "markdown" ? styles(place.before + place.quote + place.after) : [];
  const from = (n) => all.map(([a, b, name]) => [a - n, b - n, name]);
  const within = (a, b) => marked(quote, a, b, place.lit, from(ahead));
  const words = h("span", { class: "quote" }, within(0, start),
    end > start ? h("span", { class: "focus" }, within(start, end)) : null, within(end, total));
  if (place.picture) return h("blockquote", { class: "caption" }, words);
  return h("div", { class: isProse(place) ? "passage" : "passage code" },
    place.cut[0] ? "… " : null, marked(before, 0, ahead, [], all), words,
    marked(after, 0, Array.from(after).length, [], from(ahead + total)), place.cut[1] ? " …" : null);
}

const isProse = (place) => place.modality !== "table" && !["python", "code", "csv", "jsonl", "json", "xml"].includes(place.type);

// page breaks and the line ends within a paragraph, each as one character, so that spans still count
function tidy(part, place) {
  const whole = part.replaceAll("\f", "\n");
  // a heading ends with its line
  return isProse(place) ? whole.replace(/(?<=[^\n]{40})(?<!^#{1,6}\s[^\n]*)\n(?=[^\s\-*#|>\d])/gm, " ") : whole;
}

function facts(place) {
  const hit = place.hit;
  const rows = [["Path", fileOf(place.path)], ["Kind", `${place.modality}, ${place.type}`], ["Label", place.label],
    ["Characters", place.span[1] > place.span[0] ? `${place.span[0]}–${place.span[1]}` : null],
    ["Heading", place.context || null], ["Language", place.language],
    ["Modified", place.modified ? new Date(place.modified * 1000).toLocaleString() : null],
    ["Also at", place.uris.length > 1 ? number(place.uris.length - 1, "other place") : null],
    ...Object.entries(place.metadata).map(([k, v]) => [k, typeof v === "object" ? JSON.stringify(v) : String(v)]),
    ...(hit ? Object.entries(hit.scores).map(([k, v]) => [`Score, ${k}`, v.toFixed(4)]) : [])];
  return h("details", { class: "facts" }, h("summary", {}, "About this place"),
    h("dl", {}, rows.filter(([, v]) => v !== null && v !== undefined && v !== "").flatMap(([k, v]) => [h("dt", {}, k), h("dd", {}, v)])));
}

function buttons(place, actions) {
  const like = place.modality === "image" && actions.searchLike;
  return h("div", { class: "row" },
    like ? h("button", { class: "button", type: "button", onclick: () => actions.searchLike(place) }, "Find pictures like this") : null,
    h("button", { class: "button", type: "button", onclick: () => actions.copy(place) }, "Copy link"),
    actions.remove ? h("button", { class: "button bad", type: "button", id: "viewer-remove", onclick: () => actions.remove(place) }, "Remove from index") : null);
}
