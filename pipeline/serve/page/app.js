// The page: what the address says is what is shown.

import { follow, get, post } from "./api.js";
import { ask } from "./ask.js";
import { $, fileOf, h, number, problem, say, toast } from "./dom.js";
import { add, files } from "./files.js";
import { results } from "./results.js";
import { close, view } from "./viewer.js";

const main = $("results");
const LARGEST_PX = 1024;
let status = null;
let picture = null; // a data URL
let running = new AbortController();
let drawn = "";
const known = new Map(); // hits by label, so that an opened one has its scores

const read = () => new URLSearchParams(location.hash.slice(1));

// changes the address; what is empty leaves it
function go(changes, { replace = false } = {}) {
  const next = read();
  for (const [name, value] of Object.entries(changes)) value ? next.set(name, value) : next.delete(name);
  const hash = `#${next}`;
  if (hash === location.hash || (hash === "#" && !location.hash)) return draw();
  if (replace) { history.replaceState(null, "", hash); draw(); } else location.hash = hash;
}

function draw() {
  const at = read();
  const mode = at.get("view") || "search";
  for (const link of document.querySelectorAll(".views a")) {
    if (link.dataset.view === mode) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  $("query").hidden = mode === "files";
  $("go").textContent = mode === "ask" ? "Ask" : "Search";
  $("pick").hidden = mode === "ask" || status?.can_search_pictures === false;
  $("chip").hidden = mode === "ask" || !picture;
  $("words").placeholder = mode === "ask" ? "Ask your documents a question" : picture ? "Add words, as in: but in red" : "Search your documents and pictures";
  $("words").setAttribute("aria-label", mode === "ask" ? "A question" : "Words to search for");
  if (document.activeElement !== $("words")) $("words").value = at.get("q") || "";
  document.querySelector(".kinds").hidden = mode === "ask";
  $("how-label").hidden = mode !== "ask";
  $("how").value = at.get("how") || "";
  for (const radio of document.querySelectorAll("[name=kind]")) radio.checked = radio.value === (at.get("kind") || "");
  $("type").value = at.get("type") || "";
  $("where").value = at.get("where") || "";
  $("more").classList.toggle("on", Boolean(at.get("where")));
  const key = [mode, at.get("q"), at.get("kind"), at.get("type"), at.get("where"), at.get("how"), picture].join("\u0000");
  if (key !== drawn) { drawn = key; show(mode, at); }
  const opened = at.get("open");
  if (opened) view(opened, at.get("span"), at.get("q"), actions());
  else close();
}

async function show(mode, at) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  document.title = at.get("q") ? `${at.get("q")} – foveate` : "foveate";
  try {
    if (mode === "files") return await files(main, { remove, readOnly: status?.read_only });
    if (!at.get("q") && !(picture && mode === "search")) return start(mode);
    const extractive = { quote: true, write: false }[at.get("how")] ?? null;
    if (mode === "ask") return await ask(main, { text: at.get("q"), where: where(at), extractive }, (c) => open(c), signal);
    await search(at, signal);
  } catch (error) {
    if (error.name !== "AbortError") main.replaceChildren(problem(error));
  } finally {
    if (!signal.aborted) main.setAttribute("aria-busy", "false");
  }
}

async function search(at, signal) {
  main.setAttribute("aria-busy", "true");
  const kind = at.get("kind");
  const modality = { text: ["text"], table: ["table"], pictures: ["image", "page"] }[kind] ?? null;
  const began = performance.now();
  const body = { text: at.get("q") || "", k: kind === "pictures" ? 48 : 24, where: where(at), modality };
  if (picture) body.image = picture;
  const found = await post("/api/search", body, signal);
  known.clear();
  for (const hit of found.hits) known.set(hit.label, hit);
  main.replaceChildren(...results(found, open, { seconds: (performance.now() - began) / 1000, query: at.get("q") }));
  say(found.hits.length ? number(found.hits.length, "hit") : "Nothing found");
}

function where(at) {
  const parts = [];
  if (at.get("type")) parts.push(`type = '${at.get("type").replace(/'/g, "")}'`);
  if (at.get("where")) parts.push(parts.length ? `(${at.get("where")})` : at.get("where"));
  return parts.join(" and ") || null;
}

function start(mode) {
  const is = status;
  const heading = mode === "ask" ? "Ask, and see where each sentence comes from." : "Look closely at what you have.";
  const more = mode === "ask"
    ? "Every sentence of an answer carries a number that opens the place it was taken from. When the answer is not in your documents, you are told so."
    : "Words find passages and pictures. A picture finds others like it: drop one anywhere on this page, paste it, or choose it with the button in the box.";
  main.replaceChildren(h("div", { class: "start" }, h("h1", {}, heading), h("p", {}, more),
    is && !is.passages ? h("p", {}, h("br"), "The index is empty. Add files in ", h("a", { href: "#view=files" }, "Files"), ".") : null,
    h("p", { class: "keys" }, h("span", {}, h("kbd", {}, "/"), " to the box"), h("span", {}, h("kbd", {}, "↓"), " ", h("kbd", {}, "↑"), " through hits"),
      h("span", {}, h("kbd", {}, "Enter"), " opens"), h("span", {}, h("kbd", {}, "Esc"), " closes"))));
}

const open = (hit) => go({ open: hit.label, span: hit.marker !== undefined && hit.span ? hit.span.join("-") : "" });

function actions() {
  return {
    close: () => go({ open: "", span: "" }),
    heatFor: status?.can_light_pictures ? read().get("q") : null,
    copy: async (place) => {
      const url = `${location.origin}/#open=${place.label}&span=${place.span.join("-")}`;
      try { await navigator.clipboard.writeText(url); toast("Link copied"); } catch { toast(url); }
    },
    searchLike: status?.can_search_pictures === false ? null : async (place) => {
      const blob = await (await fetch(`${place.picture}?width=${LARGEST_PX}`)).blob();
      await take(blob);
    },
    remove: status?.read_only ? null : (place) => remove([...new Set(place.uris.map(fileOf))], place.name),
  };
}

function remove(paths, name) {
  const dialog = $("confirm");
  const yes = h("button", { class: "button bad", type: "button", id: "confirm-yes" }, "Remove");
  const no = h("button", { class: "button", type: "button", onclick: () => dialog.close() }, "Keep");
  dialog.replaceChildren(h("h2", { id: "confirm-title" }, `Remove “${name}” from the index?`),
    h("p", {}, "A file on your disk stays where it is; one that was uploaded here is deleted."),
    h("div", { class: "row" }, yes, no));
  yes.onclick = async () => {
    yes.disabled = true;
    try {
      const { job } = await post("/api/remove", { targets: paths });
      await follow(job);
      dialog.close();
      toast(`Removed ${name}`);
      drawn = "";
      await load();
      go({ open: "", span: "" });
    } catch (error) {
      dialog.querySelector("p").replaceChildren(problem(error));
    }
  };
  dialog.showModal();
  no.focus();
}

// a picture to search with, made small enough to send
async function take(blob) {
  let bitmap;
  try { bitmap = await createImageBitmap(blob); } catch { return toast("That is no picture this browser can read."); }
  const scale = Math.min(1, LARGEST_PX / Math.max(bitmap.width, bitmap.height));
  const canvas = h("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  picture = canvas.toDataURL("image/jpeg", 0.9);
  $("chip-image").src = picture;
  go({ view: "", open: "", span: "" });
}

async function load() {
  status = await get("/api/status");
  $("held").textContent = `${number(status.sources, "source")}, ${number(status.passages, "passage")}`;
  const chosen = $("type").value;
  $("type").replaceChildren(h("option", { value: "" }, "Any file type"),
    ...Object.entries(status.types ?? {}).map(([name, n]) => h("option", { value: name }, `${name} (${n})`)));
  $("type").value = chosen;
}

function listen() {
  window.addEventListener("hashchange", draw);
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    drawn = "";
    go({ q: $("words").value.trim(), open: "", span: "" });
  });
  $("form").addEventListener("change", (event) => {
    // what is typed and not sent goes with what is chosen
    const q = $("words").value.trim();
    if (event.target.name === "kind") go({ q, kind: event.target.value });
    if (event.target.id === "type") go({ q, type: event.target.value });
    if (event.target.id === "how") go({ q, how: event.target.value });
    if (event.target.id === "where") go({ q, where: event.target.value.trim() });
  });
  for (const link of document.querySelectorAll(".views a")) {
    link.addEventListener("click", () => {
      const words = $("words").value;
      window.addEventListener("hashchange", () => { $("words").value ||= words; }, { once: true });
    });
  }
  $("pick").addEventListener("click", () => $("picker").click());
  $("picker").addEventListener("change", () => { if ($("picker").files[0]) take($("picker").files[0]); $("picker").value = ""; });
  $("chip-drop").addEventListener("click", () => { picture = null; draw(); $("words").focus(); });
  $("viewer").addEventListener("cancel", (event) => { event.preventDefault(); go({ open: "", span: "" }); });
  $("viewer").addEventListener("click", (event) => { if (event.target === $("viewer")) go({ open: "", span: "" }); });
  document.addEventListener("click", (event) => { if (!$("more").contains(event.target)) $("more").open = false; });
  document.addEventListener("paste", (event) => {
    const item = [...event.clipboardData.files].find((f) => f.type.startsWith("image/"));
    if (item) { event.preventDefault(); take(item); }
  });
  document.addEventListener("keydown", keys);
  let depth = 0;
  document.addEventListener("dragenter", (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    depth += 1;
    $("drop").firstChild.textContent = read().get("view") === "files" ? "Drop to add to the index" : "Drop a picture to search with it";
    $("drop").hidden = false;
  });
  document.addEventListener("dragleave", () => { depth = Math.max(0, depth - 1); if (!depth) $("drop").hidden = true; });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    $("drop").hidden = true;
    const dropped = [...event.dataTransfer.files];
    if (!dropped.length) return;
    if (read().get("view") === "files") { if (!status?.read_only) add(dropped, main, { remove, readOnly: false }).then(load); } else take(dropped[0]);
  });
}

function keys(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !typing && !document.querySelector("dialog[open]")) { event.preventDefault(); $("words").focus(); $("words").select(); }
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  const items = [...main.querySelectorAll(".hit, .tile, .source")];
  if (!items.length || (typing && event.target !== $("words"))) return;
  const at = items.indexOf(document.activeElement);
  if (at < 0 && event.target !== $("words") && event.target !== document.body) return;
  const next = event.key === "ArrowDown" ? items[at + 1] : items[at - 1];
  event.preventDefault();
  if (next) next.focus(); else if (event.key === "ArrowUp") $("words").focus();
}

listen();
load().then(draw).catch((error) => { main.replaceChildren(problem(error)); });
