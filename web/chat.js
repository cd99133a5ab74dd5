// The Chat view: a conversation that lives in this page and nowhere else.
import {ApiError, json} from "./api.js";
import {Answer} from "./answer.js";
import {byId, make} from "./dom.js";
import {generate} from "./generate.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
const COUNT_AFTER_MS = 300;  // of quiet, so that typing is not counted letter by letter

class Chat {
  constructor(model) {
    this.context = model.max_model_len;
    this.hasTemplate = model.meta?.chat_template !== false;
    this.turns = [];  // {role, content, element}; an answer's content is set once it ended
    this.used = 0;    // tokens of prompt and answer at the last turn
    this.running = null;  // the AbortController of the answer that streams
    if (!this.hasTemplate) {
      byId("empty").replaceChildren(make("p", {class: "empty-title"}, "Completion mode"),
          make("p", {}, "This model has no chat template, so it does not answer: it goes on with your text, word for word as it stands. Start the server with --chat-template to chat."));
      byId("draft").placeholder = "Text to go on with";
    }
    byId("composer").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    byId("draft").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    byId("draft").addEventListener("input", () => this.drafted());
    byId("stop").addEventListener("click", () => this.stop());
    byId("new").addEventListener("click", () => this.clear());
    byId("open-settings").addEventListener("click", () => this.settings(true));
    byId("close-settings").addEventListener("click", () => this.settings(false));
    addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || byId("key-dialog").open) return;
      if (byId("settings").hasAttribute("data-open")) this.settings(false);
      else if (!byId("chat").hidden) this.stop();
    });
    byId("send").disabled = false;
    this.showCount();
  }

  focus() {
    if (matchMedia("(pointer: fine)").matches) byId("draft").focus();
  }

  settings(open) {
    byId("settings").toggleAttribute("data-open", open);
    byId("open-settings").setAttribute("aria-expanded", String(open));
    byId(open ? "system" : "open-settings").focus();
  }

  // What the fields say; empty ones are left out. Null: one of them holds no number it may hold.
  sampling() {
    if (!byId("sampling").reportValidity()) return null;
    const out = {};
    for (const name of NUMBERS) {
      if (byId(name).value !== "") out[name] = Number(byId(name).value);
    }
    return out;
  }

  messages() {
    const system = byId("system").value.trim();
    return [...(system ? [{role: "system", content: system}] : []),
            ...this.turns.filter((t) => t.content).map(({role, content}) => ({role, content}))];
  }

  send() {
    const draft = byId("draft"), text = this.hasTemplate ? draft.value.trim() : draft.value;
    if (this.running || !text || !this.sampling()) return;
    const element = make("li", {class: "said user", "aria-label": "You"}, make("div", {class: "prose plain"}, text));
    this.turns.push({role: "user", content: text, element});
    byId("thread").append(element);
    draft.value = "";
    this.drafted();
    this.answer();
  }

  regenerate() {
    if (this.running || !this.sampling()) return;
    const last = this.turns.at(-1);
    if (last?.role === "assistant") {
      last.element.remove();
      this.turns.pop();
    }
    this.answer();
  }

  async answer() {
    const answer = new Answer(), turn = {role: "assistant", content: "", element: answer.element};
    const messages = this.messages(), sampling = this.sampling();
    for (const old of byId("thread").querySelectorAll(".again")) old.remove();
    byId("empty").hidden = true;
    byId("thread").append(answer.element);
    answer.ondraw = () => this.follow();
    this.follow(true);
    this.turns.push(turn);
    this.running = new AbortController();
    this.showRunning();
    let finish = "stop", usage = null;
    try {
      for await (const piece of generate({messages, chat: this.hasTemplate, sampling, signal: this.running.signal})) {
        if (piece.text) answer.add(piece);
        if (piece.finish) finish = piece.finish;
        if (piece.usage) usage = piece.usage;
      }
      answer.end(finish, usage);
    } catch (error) {
      if (error.name === "AbortError") answer.end("stopped");
      else if (error instanceof ApiError) answer.fail(error);
      else throw error;
    } finally {
      turn.content = answer.text;
      this.running = null;
      if (usage) this.used = usage.prompt_tokens + usage.completion_tokens;
      answer.actions.append(make("button", {type: "button", class: "quiet small again", onclick: () => this.regenerate()}, "Regenerate"));
      this.showRunning();
      this.showCount();
      byId("said").textContent = `Answer: ${answer.figures.textContent}`;
      this.follow();
    }
  }

  stop() { this.running?.abort(); }

  clear() {
    this.stop();
    this.turns = [];
    this.used = 0;
    byId("thread").replaceChildren();
    byId("empty").hidden = false;
    this.showCount();
    byId("draft").focus();
  }

  showRunning() {
    const hadFocus = [byId("stop"), byId("send")].includes(document.activeElement);
    byId("stop").hidden = !this.running;
    byId("send").hidden = Boolean(this.running);
    if (hadFocus) byId(this.running ? "stop" : "send").focus();
  }

  // Keeps the newest text in sight, unless the reader has scrolled away from it.
  follow(always = false) {
    const box = byId("scroll");
    if (always || box.scrollHeight - box.scrollTop - box.clientHeight < 160) box.scrollTop = box.scrollHeight;
  }

  drafted() {
    const draft = byId("draft");
    draft.style.height = "auto";
    draft.style.height = `${draft.scrollHeight}px`;
    clearTimeout(this.counting);
    this.draftTokens = 0;
    this.showCount();
    if (!draft.value.trim()) return;
    const text = draft.value;
    this.counting = setTimeout(async () => {
      try {
        const {tokens} = await json("tokenize", {body: {content: text}});
        if (draft.value !== text) return;
        this.draftTokens = tokens.length;
        this.showCount();
      } catch { /* a count is not worth a message */ }
    }, COUNT_AFTER_MS);
  }

  showCount() {
    const all = this.used + (this.draftTokens ?? 0);
    byId("count").textContent = `${all.toLocaleString("en")} / ${this.context.toLocaleString("en")} tokens`;
    byId("count").toggleAttribute("data-full", all > 0.9 * this.context);
  }
}

export const startChat = (model) => new Chat(model);
