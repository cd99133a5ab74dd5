// Elements from values. Text always goes in as text: nothing on this page parses HTML.

export const byId = (id) => document.getElementById(id);

// make("p", {class: "hint", onclick: f}, "text", child…): null and false children are left out.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

// Browsers allow the clipboard on secure origins only; a server on the local network is none.
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea", {class: "unseen"});
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function copyButton(text) {
  const button = make("button", {type: "button", class: "quiet small", onclick: async () => {
    await copyText(text());
    button.textContent = "Copied";
    button.addEventListener("blur", () => { button.textContent = "Copy"; }, {once: true});
  }}, "Copy");
  return button;
}
