// The server's routes: keys, errors in words, event streams. Paths are relative, so that a proxy may put the page below
// a prefix.
import {byId} from "./dom.js";

const KEY = "sluice.api_key";

export class ApiError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;  // 0: no answer at all
    this.code = code;
  }
}

let asking = null;  // the dialog that is open, for all who were refused meanwhile

// Resolves to false when the person will not give one.
function askForKey(wasWrong) {
  if (asking) return asking;
  const dialog = byId("key-dialog"), field = byId("key");
  byId("key-why").textContent = wasWrong ? "The server refused that key." : "It is kept in this tab only, until you close it.";
  field.value = "";
  dialog.returnValue = "";
  asking = new Promise((resolve) => {
    byId("key-cancel").onclick = () => dialog.close("");
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, field.value.trim());
      dialog.close("given");
    };
    dialog.onclose = () => {
      asking = null;
      resolve(dialog.returnValue === "given");
    };
  });
  dialog.showModal();
  return asking;
}

async function failure(response) {
  const text = await response.text();
  try {
    const {message, code} = JSON.parse(text).error;
    return new ApiError(response.status, message, code);
  } catch {
    return new ApiError(response.status, text.slice(0, 300) || response.statusText, null);
  }
}

// A successful Response, or an ApiError. Asks for a key where one is needed.
export async function call(path, {body, signal} = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = key ? {Authorization: `Bearer ${key}`} : {};
    if (body) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body), cache: "no-store"});
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server does not answer.", null);
    }
    if (response.ok) return response;
    if (response.status === 401 && await askForKey(Boolean(key))) continue;
    throw await failure(response);
  }
}

export const json = async (path, options) => (await call(path, options)).json();

// Server-sent events of a response: {event, data}. Ends with the stream; a connection that breaks throws.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffered = "";
  try {
    for (;;) {
      const {value, done} = await reader.read().catch((error) => {
        if (error.name === "AbortError") throw error;
        throw new ApiError(0, "The connection broke before the answer was complete.", null);
      });
      if (done) return;
      buffered += value;
      let end;
      while ((end = buffered.indexOf("\n\n")) >= 0) {
        const frame = buffered.slice(0, end);
        buffered = buffered.slice(end + 2);
        let event = "message", data = "";
        for (const line of frame.split("\n")) {
          if (line.startsWith("event: ")) event = line.slice(7);
          else if (line.startsWith("data: ")) data += line.slice(6);
        }
        yield {event, data};
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// What to do about an error, in a sentence; "" where its own message says it all.
export function advice(error) {
  if (error.status === 0) return "See whether the server still runs and is reachable, then try again.";
  if (error.status === 401) return "Send the message again to enter a key.";
  if (error.status === 429) return "The server’s queue is full. Wait a moment, then try again.";
  if (error.status === 503) return "The server is starting or shutting down. Try again in a moment.";
  if (error.status === 504) return "Ask for fewer tokens, or raise server.request_timeout_ms.";
  if (error.status === 413 || error.code === "context_length_exceeded") return "Start a new chat, or shorten the message.";
  if (error.status >= 500) return "The server’s log says more.";
  return "";
}
