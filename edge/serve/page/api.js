// The agent's HTTP routes. Knows requests, replies, the token and problems in plain words; knows nothing of what is shown.

const TOKEN = "edge.token";
const PLAIN = { 413: "That is more text than the agent takes at once. Send less, or start a new chat." };

// What went wrong, for a person to read. `status` 0: the agent could not be reached.
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }

  get away() { return this.status === 0; }
}

let askForToken = async () => null;
let asking = null;

// `ask(refused)` gives a token, or null when the person does not want to; `refused`: the one given before was not right.
export function tokensComeFrom(ask) { askForToken = ask; }

function kept() {
  try { return sessionStorage.getItem(TOKEN) ?? ""; } catch { return ""; }
}

async function newToken(refused) {
  asking ??= askForToken(refused).finally(() => { asking = null; });
  const token = await asking;
  if (token) try { sessionStorage.setItem(TOKEN, token); } catch { /* then it is asked for again */ }
  return token;
}

async function reach(path, options, token) {
  const headers = { ...(options.body ? { "content-type": "application/json" } : {}), ...(token ? { authorization: `Bearer ${token}` } : {}) };
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The agent does not answer. Is it running? This page tries again by itself.");
  }
}

async function send(path, options = {}) {
  let token = kept();
  let reply = await reach(path, options, token);
  while (reply.status === 401) {
    const fresh = kept() !== token ? kept() : await newToken(Boolean(token));
    if (!fresh) throw new Problem("This agent needs its token.", 401);
    token = fresh;
    reply = await reach(path, options, token);
  }
  if (!reply.ok) throw await problemOf(reply);
  return reply;
}

async function problemOf(reply) {
  let error = {};
  try { error = (await reply.json()).error ?? {}; } catch { /* no words of its own */ }
  const message = PLAIN[reply.status] ?? error.message ?? `The agent could not do that (status ${reply.status}).`;
  return new Problem(String(message), reply.status);
}

async function json(reply) {
  try {
    return await reply.json();
  } catch {
    throw new Problem("The agent's reply was cut off.");
  }
}

export const get = async (path) => json(await send(path));
export const post = async (path, value) => json(await send(path, { method: "POST", body: JSON.stringify(value) }));

// The events of one streamed answer. Raises Problem; aborting raises AbortError.
export async function* streamed(path, value, signal) {
  const reply = await send(path, { method: "POST", body: JSON.stringify(value), signal });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value: text, done } = await part(reader);
    if (done) return;
    held += text;
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines) if (line.startsWith("data: ") && line !== "data: [DONE]") yield event(line.slice(6));
  }
}

async function part(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The agent went away before the answer was finished.");
  }
}

function event(text) {
  const value = JSON.parse(text);
  if (value.error) throw new Problem(value.error.message, 500);
  return value;
}
