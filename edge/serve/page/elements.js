// Elements of the page. Knows the document; knows nothing of agents. Whatever is shown becomes a text node: nothing is ever markup.

let made = 0;

export const $ = (id) => document.getElementById(id);
export const freshId = (stem) => `${stem}-${++made}`;

// An element with properties or attributes (null: left out), listeners ("on:click") and children.
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) set(node, key, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function set(node, key, value) {
  if (value === null || value === undefined) return;
  if (key === "class") node.className = value;
  else if (key.startsWith("on:")) node.addEventListener(key.slice(3), value);
  else if (key in node && !key.startsWith("aria") && key !== "role") node[key] = value;
  else node.setAttribute(key, String(value));
}

export function svgElement(name, attributes, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

export function button(text, onClick, attributes = {}) {
  return element("button", { type: "button", ...attributes, "on:click": onClick }, text);
}

// Names and values; what is null or empty is left out.
export function facts(rows) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element("dl", {}, ...shown.flatMap(([name, value]) => [
    element("dt", {}, name), element("dd", { dir: "auto" }, value instanceof Node ? value : String(value)),
  ]));
}

// A table that a narrow screen stacks into cards; the roles keep it a table for screen readers then.
export function table(caption, names, rows) {
  const head = element("tr", { role: "row" }, ...names.map((name) => element("th", { role: "columnheader", scope: "col" }, name)));
  const body = rows.map((cells) => element("tr", { role: "row" }, ...cells.map((cell, index) => cellOf(cell, names[index], index))));
  return element("table", { role: "table" }, element("caption", {}, caption),
    element("thead", { role: "rowgroup" }, head), element("tbody", { role: "rowgroup" }, ...body));
}

function cellOf(cell, name, index) {
  const [tag, role] = index === 0 ? ["th", "rowheader"] : ["td", "cell"];
  const value = cell ?? "–";
  return element(tag, { role, scope: index === 0 ? "row" : null, "data-name": name, class: value === "–" ? "none" : null }, value instanceof Node ? value : element("span", { dir: "auto" }, String(value)));
}

// Puts new children in only when what they are made from has changed, so that focus and selection survive a refresh.
export function refill(node, source, children) {
  const key = JSON.stringify(source);
  if (node.dataset.source === key) return false;
  node.dataset.source = key;
  node.replaceChildren(...children());
  return true;
}

// One line for screen readers, read out when they are free.
export function announce(text) {
  const place = $("announcer");
  place.textContent = "";
  setTimeout(() => { place.textContent = text; }, 50);
}

// Asks yes or no in a dialog; Esc is no, and focus goes back to where it was.
export function confirmed(title, text, yes) {
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("confirm-text").textContent = text;
  $("confirm-yes").textContent = yes;
  return answered(dialog, $("confirm-no")).then((value) => value === "yes");
}

// Opens a dialog and gives what it was closed with. A close event of an earlier opening may come late; it is not taken for this one's.
export function answered(dialog, first) {
  dialog.returnValue = "";
  if (!dialog.open) dialog.showModal();
  first.focus();
  return new Promise((resolve) => {
    const onClose = () => {
      if (dialog.open) return;
      dialog.removeEventListener("close", onClose);
      resolve(dialog.returnValue);
    };
    dialog.addEventListener("close", onClose);
  });
}

export async function copyText(text) {
  const done = await written(text);
  announce(done ? "Copied" : "This browser does not let the page copy");
  return done;
}

// The clipboard belongs to secure pages; elsewhere a selection is copied as in old browsers.
async function written(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const before = document.activeElement;
    const area = element("textarea", { value: text, class: "hidden", "aria-label": "text to copy" });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus();
    return done;
  }
}

// A button that copies and shows for a moment that it did.
export function copyButton(text, label = "Copy") {
  const copy = button(label, async () => {
    copy.textContent = (await copyText(text())) ? "Copied" : "Not copied";
    setTimeout(() => { copy.textContent = label; }, 1500);
  }, { class: "quiet" });
  return copy;
}
