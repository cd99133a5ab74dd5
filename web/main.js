// Which view shows, and what the server says of itself.
import {ApiError, advice, json} from "./api.js";
import {startChat} from "./chat.js";
import {byId} from "./dom.js";
import {startLive} from "./live.js";

const views = ["chat", "live"];
let chat, live;

function show() {
  const wanted = views.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat";
  for (const name of views) {
    byId(name).hidden = name !== wanted;
    byId(`to-${name}`).toggleAttribute("data-here", name === wanted);
    if (name === wanted) byId(`to-${name}`).setAttribute("aria-current", "page");
    else byId(`to-${name}`).removeAttribute("aria-current");
  }
  live?.visible(wanted === "live");
  if (wanted === "chat") chat?.focus();
}

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

// Resolves once the model answers; says meanwhile how far it is.
async function untilReady() {
  for (;;) {
    let wait = "The server does not answer.";
    try {
      const response = await fetch("ready", {cache: "no-store"});
      if (response.ok) return notice("");
      const state = await response.json();
      const progress = state.progress > 0 ? ` (${Math.round(100 * state.progress)} %)` : "";
      wait = `${state.reason}${state.phase ? ` Now: ${state.phase}${progress}.` : ""}`;
    } catch { /* said below */ }
    notice(`${wait} This page goes on by itself.`);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

async function start() {
  await untilReady();
  try {
    const [model] = (await json("v1/models")).data;
    byId("model").textContent = model.id;
    document.title = `${model.id} · Sluice`;
    chat = startChat(model);
    live = startLive();
    show();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    notice(`${error.message} ${advice(error)} Reload the page to try again.`);
  }
}

addEventListener("hashchange", show);
show();
start();
