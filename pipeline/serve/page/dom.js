// Elements from data. Text is only ever text: nothing here reads markup.

export const $ = (id) => document.getElementById(id);

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// spans count code points, JavaScript's strings count UTF-16 units
export function slice(text, start, end) {
  return Array.from(text).slice(start, end).join("");
}

// the part [start, end) of a text with the spans in `lit` marked; styles: [start, end, class]
export function marked(text, start, end, lit, styles = []) {
  const points = Array.from(text);
  const edges = [...lit, ...styles].flatMap(([a, b]) => [a, b]).filter((x) => x > start && x < end);
  const cuts = [...new Set([start, ...edges, end])].sort((a, b) => a - b);
  const holds = ([a, b], x) => a <= x && x < b;
  return cuts.slice(0, -1).map((from, i) => {
    const piece = points.slice(from, cuts[i + 1]).join("");
    const classes = styles.filter((s) => holds(s, from)).map((s) => s[2]).join(" ");
    if (lit.some((s) => holds(s, from))) return h("mark", { class: classes }, piece);
    return classes ? h("span", { class: classes }, piece) : piece;
  });
}

export const withWidth = (url, width) => `${url}${url.includes("?") ? "&" : "?"}width=${width}`;

export const number = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

export function bytes(n) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (n < 1000 || unit === "GB") return `${unit === "B" || n >= 10 ? Math.round(n) : n.toFixed(1)} ${unit}`;
    n /= 1000;
  }
}

export function say(sentence) {
  $("say").textContent = sentence;
}

let hiding;
export function toast(sentence) {
  $("toast").textContent = sentence;
  $("toast").hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { $("toast").hidden = true; }, 5000);
}

export function problem(error) {
  return h("div", { class: "notice bad", role: "alert" }, error.message || String(error));
}

// what a person should know of a search that went through, as of a filter's unknown field
export function notes(sentences) {
  return sentences?.length ? h("div", { class: "notice notes", role: "note" }, sentences.map((s) => h("p", {}, s))) : null;
}

export const fileOf = (path) => path.split("#row=")[0];

// a short form of a path: its last two folders
export function folder(path) {
  const parts = fileOf(path).split("/").slice(0, -1).filter(Boolean);
  return parts.length > 2 ? `…/${parts.slice(-2).join("/")}` : parts.join("/");
}
