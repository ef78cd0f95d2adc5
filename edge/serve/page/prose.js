// A model's text on the page, while it grows: paragraphs, code blocks with a copy button, boxed results. Knows text; everything in it is
// hostile and becomes text nodes.

import { copyButton, element } from "./elements.js";

const BOX = "\\boxed{";
const PARTS = /\n*(```[\s\S]*?(?:```|$))\n*|(\\boxed\{[^{}]*\})/;

// Only what changed since the last call is made anew, so that a growing answer keeps its selection and its buttons.
export function showProse(node, text) {
  const parts = text.split(PARTS).filter(Boolean);
  const before = node.proseParts ?? [];
  let same = 0;
  while (same < before.length && parts[same] === before[same]) same += 1;
  if (same === before.length - 1 && parts.length > same && grown(node.childNodes[same], before[same], parts[same])) same += 1;
  while (node.childNodes.length > same) node.lastChild.remove();
  node.append(...parts.slice(same).map(shown));
  node.proseParts = parts;
}

function grown(child, before, part) {
  if (child?.nodeType === Node.TEXT_NODE && !part.startsWith("```") && !part.startsWith("\\boxed{")) child.data = part;
  else if (child?.classList?.contains("code") && part.startsWith("```") && before.includes("\n")) child.querySelector("code").textContent = code(part);
  else return false;
  return true;
}

// The text as it is read aloud and copied: what stands in a box without the box, whatever braces are in it; code as it is.
export const plain = (text) => text.split(/(```[\s\S]*?(?:```|$))/).map((part) => part.startsWith("```") ? part : unboxed(part)).join("");

function unboxed(text) {
  const start = text.indexOf(BOX);
  if (start < 0) return text;
  const inside = start + BOX.length, end = closing(text, inside);
  return end < 0 ? text : text.slice(0, start) + text.slice(inside, end) + unboxed(text.slice(end + 1));
}

// Where the brace closes that was opened before `at`; -1 where it does not.
function closing(text, at) {
  for (let depth = 1, here = at; here < text.length; here += 1) {
    if (text[here] === "\\") here += 1;
    else if (text[here] === "{") depth += 1;
    else if (text[here] === "}" && --depth === 0) return here;
  }
  return -1;
}

const code = (part) => part.replace(/^```[^\n]*\n?/, "").replace(/\n?```$/, "");

function shown(part) {
  if (part.startsWith("```")) return block(part);
  if (part.startsWith("\\boxed{")) return element("strong", { class: "boxed" }, part.slice(7, -1));
  return document.createTextNode(part);
}

function block(part) {
  const text = element("code", {}, code(part));
  const name = part.match(/^```([\w+#.-]{1,20})/)?.[1] ?? "code";
  return element("div", { class: "code", dir: "ltr" },
    element("div", { class: "code-head" }, element("span", {}, name), copyButton(() => text.textContent, "Copy code")),
    element("pre", { tabIndex: 0, role: "region", "aria-label": `Code, ${name}` }, text));
}
