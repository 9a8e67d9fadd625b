// Calls to the server that this page came from.

import { $ } from "./dom.js";

export class Failure extends Error {}

async function failure(response) {
  let told;
  try { told = (await response.json()).error; } catch { told = null; }
  return new Failure(told?.message || `The server answered ${response.status}.`);
}

async function call(path, options = {}) {
  for (;;) {
    let response;
    try {
      response = await fetch(path, { credentials: "same-origin", ...options });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Failure("The server cannot be reached. Is it still running?");
    }
    if (response.status !== 401) return response;
    await unlock();
  }
}

let unlocking = null;
function unlock() {
  unlocking ??= new Promise((resolve) => {
    const dialog = $("lock");
    $("lock-form").onsubmit = async (event) => {
      event.preventDefault();
      const body = JSON.stringify({ token: $("token").value });
      const response = await fetch("/api/session", { method: "POST", headers: { "Content-Type": "application/json" }, body });
      if (!response.ok) { $("lock-wrong").textContent = "That is not the token."; return; }
      $("token").value = "";
      dialog.close();
      unlocking = null;
      resolve();
    };
    dialog.oncancel = (event) => event.preventDefault();
    dialog.showModal();
  });
  return unlocking;
}

export async function get(path, signal) {
  const response = await call(path, { signal });
  if (!response.ok) throw await failure(response);
  return response.json();
}

export async function post(path, body, signal) {
  const response = await call(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await failure(response);
  return response.json();
}

// yields [name, data] of each event of an answer
export async function* events(path, body, signal) {
  const response = await call(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    let end;
    while ((end = held.indexOf("\n\n")) >= 0) {
      const lines = held.slice(0, end).split("\n");
      held = held.slice(end + 2);
      const name = lines.find((l) => l.startsWith("event: "))?.slice(7);
      const data = lines.filter((l) => l.startsWith("data: ")).map((l) => l.slice(6)).join("\n");
      if (name) yield [name, JSON.parse(data)];
    }
  }
}

export async function upload(file) {
  const response = await call(`/api/files?name=${encodeURIComponent(file.name)}`, {
    method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file,
  });
  if (!response.ok && response.status !== 422) throw await failure(response);
  return (await response.json()).job;
}

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// follows a job to its end; tell gets it each time it is looked at
export async function follow(job, tell = () => {}) {
  for (let pause = 150; job.state === "waiting" || job.state === "running"; pause = Math.min(1000, pause * 1.4)) {
    tell(job);
    await wait(pause);
    job = await get(`/api/jobs/${job.id}`);
  }
  tell(job);
  if (job.state === "failed") throw new Failure(job.error || "It failed.");
  return job;
}
