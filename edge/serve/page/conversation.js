// The conversation as it is kept for this tab. Knows turns and the session's storage; knows nothing of how they are shown.
//
// A turn: question, task (the label of a task whose texts are sorted, or ""), reasoning, content, state (running, done, stopped, failed), note (what the agent reports of the answer), problem,
// feedback (verdict: good, bad or none) and correction.

const KEY = "edge.conversation";
const MOST_SENT = 100;

export function newTurn(question, task) {
  return { question, task, reasoning: "", content: "", state: "running", note: null, problem: "", verdict: "none", correction: "" };
}

export function loadConversation() {
  const empty = { turns: [], draft: "", model: "edge", task: "", reasoned: false };
  try {
    const kept = { ...empty, ...JSON.parse(sessionStorage.getItem(KEY) ?? "{}") };
    kept.turns.filter((turn) => turn.state === "running").forEach(cutOff);
    return kept;
  } catch {
    return empty;
  }
}

function cutOff(turn) {
  turn.state = "failed";
  turn.problem = "The page was reloaded while this was being answered.";
}

// What does not fit is let go from the oldest turn on; what cannot be kept at all lives as long as the page.
export function saveConversation(kept) {
  for (let from = 0; from <= kept.turns.length; from = from * 2 + 1) {
    try {
      sessionStorage.setItem(KEY, JSON.stringify({ ...kept, turns: kept.turns.slice(from) }));
      return;
    } catch { /* too long: try with fewer turns */ }
  }
}

// What the agent is sent for a turn: the finished ones before it, and its question. A text that is sorted stands alone.
export function messagesFor(turns, turn) {
  const before = turn.task ? [] : turns.slice(0, turns.indexOf(turn)).filter((past) => past.state === "done" && !past.task);
  return [...before.slice(-MOST_SENT).flatMap((past) => [
    { role: "user", content: past.question },
    { role: "assistant", content: past.content.trim() || past.reasoning.trim() },
  ]), { role: "user", content: turn.question }];
}
