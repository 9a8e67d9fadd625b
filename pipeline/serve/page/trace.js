// How an answer was made: its stages in their order, each with its time, what came in and what went out.

import { h, number, slice } from "./dom.js";

const percent = (x) => `${Math.round(100 * x)}%`;
const time = (s) => (s < 0.1 ? `${(1000 * s).toFixed(s < 0.01 ? 1 : 0)} ms` : `${s.toFixed(2)} s`);
const plain = (name) => name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");
const score = (x) => (typeof x === "number" ? x.toFixed(3) : "–");

// of a stage by its name: its title, and [in, out, elements that show more] from the answer `a`
const STAGES = {
  search: ["Search", (a) => ["the question", number(a.hits.length, "hit"), hits(a)]],
  compress: ["Compress", (a, row) => [number(a.hits.length, "hit"), `${number(row.kept ?? 0, "hit")} kept, ${number(row.tokens ?? 0, "token")}`, kept(a)]],
  evidence: ["Evidence", (a, row) => [number(a.hits.length, "hit"),
    `${number(row.sentences ?? 0, "sentence")} compared, ${chosen(a).length} chosen; the question asks for: ${a.trace.evidence?.asks_for ?? "anything"}`, evidence(a)]],
  judge: ["Is the answer in there?", (a) => [number(chosen(a).length, "chosen sentence"), judged(a.trace.answerable), features(a.trace.answerable)]],
  order: ["Order", () => ["the passages to show", "the same in another order"]],
  prompt: ["Shown to the reader", (a, row, p = a.trace.prompt ?? {}) => [number(row.sentences ?? a.trace.evidence?.sentences ?? 0, "sentence"),
    `${number(p.passages?.length ?? 0, "passage")}, ${number(p.tokens ?? 0, "token")}`, (p.messages ?? []).map((m) => folded(plain(m.role), m.content))]],
  generate: ["Write", (a, row, g = a.trace.generation ?? {}) => [g.prompt_tokens == null ? "the prompt" : number(g.prompt_tokens, "token"),
    [g.completion_tokens == null ? "a draft" : number(g.completion_tokens, "token"), `by ${g.generator ?? row.generator ?? "the reader"}`, `ended by: ${g.stopped ?? "–"}`].join(", "), quoted(g.text || g.detail)]],
  cite: ["Check against the sources", (a) => [number(a.trace.cite?.alignments?.length ?? 0, "sentence"), checked(a), claims(a)]],
  quote: ["Quote", (a) => [number(chosen(a).length, "chosen sentence"), checked(a), claims(a)]],
  contradiction: ["Look for what speaks against it", (a) => [number(a.citations.length, "citation"), number(against(a).length, "contradiction"),
    list(against(a).map((c) => `“${c.quote}”`))]],
};

export function trace(data, open) {
  const t = data.trace;
  if (!t) return null;
  const a = { hits: [], citations: [], ...data, open };
  const rows = t.stages ?? [];
  const total = rows.reduce((sum, row) => sum + (row.seconds ?? 0), 0);
  return h("details", { class: "trace", id: "trace" },
    h("summary", {}, "How this answer was made ", h("small", {}, `${number(rows.length, "stage")}, ${time(total)}`)),
    h("ol", { class: "stages" }, whole(rows, t).map((row) => stage(row, a)), result(t)),
    h("details", { class: "raw" }, h("summary", {}, "Details: the trace as JSON"), h("pre", {}, JSON.stringify(t, null, 1))));
}

// quoting takes no time of its own and has no row
function whole(rows, t) {
  if (!t.cite || t.held_back || rows.some((row) => row.stage === "cite")) return rows;
  const at = rows.findIndex((row) => row.stage === "contradiction");
  return rows.toSpliced(at < 0 ? rows.length : at, 0, { stage: "quote" });
}

function stage(row, a) {
  const { stage: name, seconds, ...rest } = row;
  const others = Object.entries(rest).map(([k, v]) => `${k}: ${v}`).join(", ");
  const [title, tell] = STAGES[name] ?? [plain(String(name)), () => [null, others]];
  const [from, to, more] = tell(a, row);
  return step(title, seconds, [from, to].filter(Boolean).join(" → "), more);
}

const step = (title, seconds, flow, more) => h("li", { class: "stage" },
  h("h3", {}, title, seconds === undefined ? null : h("small", {}, time(seconds))), flow ? h("p", { class: "flow" }, flow) : null, ...[more].flat());

function result(t) {
  const how = { extractive: "In the sources’ own words.", generated: "Written by the reader, each sentence checked.", refused: `Not answered: ${t.refused_because ?? "nothing fits"}.` };
  return t.mode ? step("Result", undefined, how[t.mode] ?? plain(t.mode), t.held_back ? folded(`Held back: ${t.held_back.reason}`, t.held_back.text) : null) : null;
}

const chosen = (a) => a.trace.evidence?.chosen ?? [];
const dropped = (a) => a.trace.cite?.dropped ?? [];
const against = (a) => a.trace.contradicted ?? [];
const named = (hit) => (hit.page !== null && hit.n_pages > 1 ? `${hit.name}, page ${hit.page}` : hit.name);
const list = (lines) => (lines.length ? h("ul", {}, lines.map((line) => h("li", {}, line))) : null);
const quoted = (text) => (text ? h("pre", {}, text) : null);
const folded = (name, text) => h("details", { class: "raw" }, h("summary", {}, name), h("pre", {}, text));

function table(name, heads, rows) {
  if (!rows.length) return null;
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}

const link = (hit, words, a) => h("button", { type: "button", onclick: () => a.open(hit) }, words);

function hits(a) {
  const stages = [...new Set(a.hits.flatMap((hit) => Object.keys(hit.scores)))];
  const best = new Map((a.trace.hits ?? []).map((x) => [x.label, x.evidence]));
  return table("Hits and their scores", ["Hit", ...stages, "score", "evidence"],
    a.hits.map((hit) => [link(hit, named(hit), a), ...stages.map((s) => score(hit.scores[s])), score(hit.score), score(best.get(hit.label))]));
}

function kept(a) {
  const held = new Map(a.hits.map((hit) => [hit.label, hit]));
  return table("What was kept", ["Hit", "parts", "score"], (a.trace.context?.kept ?? []).map((k) =>
    [held.has(k.label) ? named(held.get(k.label)) : k.label, String(k.spans?.length ?? 0), score(k.score)]));
}

function evidence(a) {
  const held = new Map(a.hits.map((hit) => [hit.label, hit]));
  const words = (c) => {
    const hit = held.get(c.label);
    const said = hit?.span ? slice(hit.text, c.span[0] - hit.span[0], c.span[1] - hit.span[0]).trim() : "";
    return said ? `“${said}”` : c.label;
  };
  const parts = [...new Set(chosen(a).flatMap((c) => Object.keys(c).filter((k) => typeof c[k] === "number" && k !== "score")))];
  return table("Chosen sentences and their scores", ["Sentence", ...parts, "score"],
    chosen(a).map((c) => [words(c), ...parts.map((p) => score(c[p])), score(c.score)]));
}

const judged = (found) => (found ? `${percent(found.score)}, at least ${percent(found.threshold)} is needed` : "");

function features(found) {
  const parts = Object.entries(found ?? {}).filter(([k, v]) => typeof v === "number" && k !== "score" && k !== "threshold");
  return [table("What the judgement rests on", parts.map(([k]) => plain(k)), parts.length ? [parts.map(([, v]) => score(v))] : []),
    found?.unspoken ? h("p", {}, `No cited passage speaks of: ${found.unspoken}`) : null];
}

function checked(a) {
  const removed = a.trace.cite?.markers_removed ?? 0;
  return [number(a.citations.length, "citation"), dropped(a).length ? `${number(dropped(a).length, "sentence")} dropped` : null,
    removed ? `${number(removed, "false marker")} removed` : null].filter(Boolean).join(", ");
}

function claims(a) {
  return [table("Sentences and their support", ["Sentence", "support"], (a.trace.cite?.alignments ?? []).map((c) => [c.sentence, score(c.support)])),
    list(dropped(a).map((d) => `Dropped: “${d.sentence}”: ${d.reason}`))];
}
