// The agent's own names in plain words. Knows names; knows nothing of where they are shown. Without prototypes: names come from elsewhere.

const REASONS = { __proto__: null, "mode cloud-only": "you wanted the cloud's answer", "mode local-only": "you wanted this device's answer" };

const COMMAND = " (edge-agent budget resume ends it)";

// Words that name a command are shown without it: the page has a switch for that.
export const reasonWords = (reason) => (REASONS[reason] ?? reason).replace(COMMAND, "");

const OWN_USE = [["mine:", "your own use"], ["watched:", "your task files"]];

// What is learned from, as in the terminal (edge/core/formatting.py): one's own use in words, of a file its name without the folders.
export function sourceName(source) {
  for (const [kind, words] of OWN_USE) if (source.startsWith(kind)) return `${words} (${source.slice(kind.length)})`;
  const end = source.lastIndexOf("/");
  return source.slice(0, Math.max(end, 0)).includes(":") ? source : source.slice(end + 1);
}

// The note next to validation questions of which none is held out.
export const LEARNED_FROM = "learned from, too";

export const sentence = (text) => text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "";
