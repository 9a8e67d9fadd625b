// What is indexed, file by file; files are added and removed here.

import { follow, get, upload } from "./api.js";
import { bytes, folder, h, number, problem, toast } from "./dom.js";

const base = (path) => path.split("/").pop();

export async function files(main, { remove, readOnly }) {
  const status = await get("/api/status?files=true");
  const bad = (f) => Number(f.state === "failed");
  const held = [...status.files].sort((a, b) => bad(b) - bad(a)); // what needs a look comes first
  const picker = h("input", { type: "file", multiple: true, hidden: true, id: "add-picker", onchange: () => add([...picker.files], main, { remove, readOnly }) });
  const work = h("div", { id: "work", role: "status" });
  const top = readOnly ? null : h("div", { class: "upload" },
    h("span", {}, "Drop documents or pictures here to add them to the index."), picker,
    h("button", { class: "button", type: "button", onclick: () => picker.click() }, "Choose files"));
  const search = h("input", { type: "search", "aria-label": "Find a file by its name", placeholder: "Find a file", class: "button" });
  const list = h("ul", { class: "files" });
  const draw = () => {
    const wanted = search.value.toLowerCase();
    const some = held.filter((f) => f.path.toLowerCase().includes(wanted));
    list.replaceChildren(...some.slice(0, 500).map((f) => row(f, remove, readOnly)),
      some.length > 500 ? h("li", {}, `and ${number(some.length - 500, "more file", "more files")}`) : "");
  };
  search.addEventListener("input", draw);
  draw();
  main.replaceChildren(...[top, work, h("p", { class: "count" }, `${number(held.length, "file")}, ${number(status.passages, "passage")}, ${bytes(status.bytes.total)} on disk`), held.length > 8 ? search : null, list].filter(Boolean));
}

function row(file, remove, readOnly) {
  const why = file.notes.filter((n) => n.kind !== "info").map((n) => n.message).slice(0, 3).join("; ");
  return h("li", {}, h("span", {}, h("b", {}, base(file.path)), " ", h("span", { class: "where" }, folder(file.path))),
    h("span", { class: `num ${file.state}` }, file.state === "indexed" ? number(file.n_passages, "passage") : file.state),
    readOnly ? h("span") : h("button", { class: "bin", type: "button", "aria-label": `Remove ${base(file.path)}`, onclick: () => remove([file.path], base(file.path)) }, "Remove"),
    why ? h("span", { class: "why" }, why) : null);
}

export async function add(chosen, main, actions) {
  let n = 0;
  const failed = [];
  for (const file of chosen) {
    const work = main.querySelector("#work");
    const bar = h("progress", { "aria-label": `Adding ${file.name}` });
    const line = h("p", {}, `${file.name}: sending`);
    work?.replaceChildren(line, bar);
    try {
      const job = await follow(await upload(file), (j) => {
        line.textContent = `${file.name}: ${j.stage || j.state}`;
        if (j.n_all) { bar.max = j.n_all; bar.value = j.n_done; }
      });
      const trouble = job.report.problems?.[0]?.notes?.[0]?.message;
      if (job.report.n_passages || job.report.n_moved || job.report.n_added) n += 1;
      if (trouble && !job.report.n_passages) failed.push(`${file.name}: ${trouble}`);
    } catch (error) {
      work?.replaceChildren(problem(error));
      return;
    }
  }
  toast([`${number(n, "file")} added`, failed.length ? `${failed.length} not: ${failed.slice(0, 3).join("; ")}` : ""].filter(Boolean).join(", "));
  if (main.querySelector("#work")) await files(main, actions);
}
