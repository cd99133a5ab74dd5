// Markdown as models write it, to DOM nodes: headings, lists, quotes, tables, fenced code, emphasis, code, links. Every
// piece of text becomes a text node, so there is nothing to escape and nothing that could run. HTML in the source shows
// as it was written; images are shown as links, so that no answer makes the browser fetch anything.
import {copyButton, make} from "./dom.js";

const INLINE = /(`+)([^]*?[^`])\1(?!`)|\*\*(?=\S)([^]*?\S)\*\*|~~(?=\S)([^]*?\S)~~|\*(?=[^\s*])([^*]*[^\s*])\*|(?<![\p{L}\p{N}_])_(?=[^\s_])([^_]*[^\s_])_(?![\p{L}\p{N}_])|!?\[([^\]\n]*)\]\(([^()\s]*(?:\([^()\s]*\))?[^()\s]*)\)/u;
const MAX_NESTING = 8;

function link(text, address) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return document.createTextNode(text);
  return make("a", {href: address, target: "_blank", rel: "noopener noreferrer"}, text || address);
}

function inline(into, text, depth = 0) {
  while (text) {
    const match = depth < MAX_NESTING ? INLINE.exec(text) : null;
    if (!match) break;
    into.append(text.slice(0, match.index));
    const [all, , code, bold, struck, star, underscore, label, address] = match;
    if (code !== undefined) into.append(make("code", {}, code.trim() || code));
    else if (label !== undefined) into.append(link(label, address));
    else {
      const element = document.createElement(bold !== undefined ? "strong" : struck !== undefined ? "del" : "em");
      inline(element, bold ?? struck ?? star ?? underscore, depth + 1);
      into.append(element);
    }
    text = text.slice(match.index + all.length);
  }
  into.append(text);
  return into;
}

function codeBlock(language, code) {
  return make("figure", {class: "code"},
      make("figcaption", {}, make("span", {}, language || "text"), copyButton(() => code)),
      make("pre", {tabindex: "0"}, make("code", {}, code)));
}

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const startsBlock = (line) => FENCE.test(line) || ITEM.test(line) || /^(#{1,6}\s|\s{0,3}>|\s{0,3}([-*_])(\s*\2){2,}\s*$)/.test(line);

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

class Reader {
  constructor(lines) {
    this.lines = lines;
    this.at = 0;
  }
  get line() { return this.lines[this.at]; }
  get more() { return this.at < this.lines.length; }

  fence() {
    const [, mark, language] = FENCE.exec(this.line);
    const code = [];
    for (++this.at; this.more && !this.line.trim().startsWith(mark); ++this.at) code.push(this.line);
    ++this.at;  // an answer that still streams has no closing line yet
    return codeBlock(language, code.join("\n"));
  }

  quote(depth) {
    const inner = [];
    for (; this.more && /^\s{0,3}>/.test(this.line); ++this.at) inner.push(this.line.replace(/^\s{0,3}> ?/, ""));
    return blocks(make("blockquote"), inner, depth + 1);
  }

  list(depth) {
    const [, indent, mark] = ITEM.exec(this.line);
    const numbered = /\d/.test(mark);
    const list = make(numbered ? "ol" : "ul", {start: numbered && parseInt(mark, 10) !== 1 ? parseInt(mark, 10) : null});
    while (this.more) {
      const item = ITEM.exec(this.line);
      if (!item || item[1].length < indent.length || /\d/.test(item[2]) !== numbered) break;
      const inner = [item[3]];
      for (++this.at; this.more; ++this.at) {
        const next = ITEM.exec(this.line);
        const deeper = /^\s*/.exec(this.line)[0].length > indent.length;
        if (next && next[1].length <= indent.length) break;
        if (!this.line.trim()) {
          const after = this.lines[this.at + 1] ?? "";
          if (!/^\s{2,}\S/.test(after) && !ITEM.test(after)) break;
        } else if (!deeper && startsBlock(this.line)) break;
        inner.push(this.line.replace(new RegExp(`^\\s{0,${indent.length + mark.length + 1}}`), ""));
      }
      while (this.more && !this.line.trim() && ITEM.test(this.lines[this.at + 1] ?? "")) ++this.at;
      list.append(blocks(make("li"), inner, depth + 1));
    }
    return list;
  }

  table() {
    const row = (tag, line) => make("tr", {}, cells(line).map((cell) => inline(make(tag), cell)));
    const head = make("thead", {}, row("th", this.line)), body = make("tbody");
    for (this.at += 2; this.more && this.line.includes("|"); ++this.at) body.append(row("td", this.line));
    return make("div", {class: "table", tabindex: "0"}, make("table", {}, head, body));
  }

  paragraph() {
    const lines = [this.line];
    for (++this.at; this.more && this.line.trim() && !startsBlock(this.line); ++this.at) lines.push(this.line);
    return inline(make("p"), lines.join("\n"));
  }
}

function blocks(into, lines, depth) {
  const reader = new Reader(lines);
  while (reader.more) {
    const line = reader.line;
    if (!line.trim()) ++reader.at;
    else if (FENCE.test(line)) into.append(reader.fence());
    else if (/^#{1,6}\s/.test(line)) {
      const level = /^#+/.exec(line)[0].length;
      into.append(inline(make(`h${Math.min(6, level + 2)}`), line.replace(/^#+\s+|\s+#+\s*$/g, "")));
      ++reader.at;
    } else if (/^\s{0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      into.append(make("hr"));
      ++reader.at;
    } else if (depth < MAX_NESTING && /^\s{0,3}>/.test(line)) into.append(reader.quote(depth));
    else if (depth < MAX_NESTING && ITEM.test(line)) into.append(reader.list(depth));
    else if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(reader.lines[reader.at + 1] ?? "")) into.append(reader.table());
    else into.append(reader.paragraph());
  }
  return into;
}

export function renderMarkdown(into, source) {
  into.replaceChildren();
  return blocks(into, source.replace(/\r\n?/g, "\n").split("\n"), 0);
}
