// A model's text on the page, while it grows: paragraphs, code blocks with a copy button, boxed results. Knows text; everything in it is
// hostile and becomes text nodes.

import { copyButton, element } from "./elements.js";

const BOX = "\\boxed{";
const CODE = /\n*(```[\s\S]*?(?:```|$))\n*/;
const WORDS = /\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}/g;

// Only what changed since the last call is made anew, so that a growing answer keeps its selection and its buttons.
export function showProse(node, text) {
  const parts = text.split(CODE).flatMap((part) => part.startsWith("```") ? [part] : boxesOf(part)).filter(Boolean);
  const before = node.proseParts ?? [];
  let same = 0;
  while (same < before.length && parts[same] === before[same]) same += 1;
  if (same === before.length - 1 && parts.length > same && grown(node.childNodes[same], before[same], parts[same])) same += 1;
  while (node.childNodes.length > same) node.lastChild.remove();
  node.append(...parts.slice(same).map(shown));
  node.proseParts = parts;
}

function grown(child, before, part) {
  if (child?.nodeType === Node.TEXT_NODE && !part.startsWith("```") && unboxed(part) === part) child.data = part;
  else if (child?.classList?.contains("boxed") && part.startsWith(BOX)) child.textContent = unboxed(part);
  else if (child?.classList?.contains("code") && part.startsWith("```") && before.includes("\n")) child.querySelector("code").textContent = code(part);
  else return false;
  return true;
}

// The text as it is read aloud and copied: the content of a box without the box, whatever braces are in it; code as it is.
export const plain = (text) => text.split(/(```[\s\S]*?(?:```|$))/).map((part) => part.startsWith("```") ? part : boxesOf(part).map(unboxed).join("")).join("");

// The text in parts, each box one of them; one that is not closed, where the text is cut or still grows, reaches to its end.
function boxesOf(text) {
  const start = text.indexOf(BOX);
  if (start < 0) return [text];
  const end = closing(text, start + BOX.length) + 1 || text.length;
  return [text.slice(0, start), text.slice(start, end), ...boxesOf(text.slice(end))];
}

// A box's words: \text{Paris} and the like are set as they are written.
function unboxed(part) {
  if (!part.startsWith(BOX)) return part;
  const end = closing(part, BOX.length);
  return part.slice(BOX.length, end < 0 ? part.length : end).replace(WORDS, "$1");
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
  if (unboxed(part) !== part) return element("strong", { class: "boxed" }, unboxed(part));
  return document.createTextNode(part);
}

function block(part) {
  const text = element("code", {}, code(part));
  const name = part.match(/^```([\w+#.-]{1,20})/)?.[1] ?? "code";
  return element("div", { class: "code", dir: "ltr" },
    element("div", { class: "code-head" }, element("span", {}, name), copyButton(() => text.textContent, "Copy code")),
    element("pre", { tabIndex: 0, role: "region", "aria-label": `Code, ${name}` }, text));
}
