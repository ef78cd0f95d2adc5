// The agent's own names in plain words. Knows names; knows nothing of where they are shown. Without prototypes: names come from elsewhere.

const REASONS = { __proto__: null, "mode cloud-only": "you wanted the cloud's answer", "mode local-only": "you wanted this device's answer" };

const COMMAND = " (edge-agent budget resume ends it)";

// What names a command is said without it: the page has a switch for that.
export const reasonWords = (reason) => (REASONS[reason] ?? reason).replace(COMMAND, "");

// What is learned from: one's own questions, or a source by its name.
export const sourceName = (source) => source.startsWith("mine:") ? `your own use (${source.slice(5)})` : source;

export const sentence = (text) => text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "";
