// Asking the person for the agent's token. Knows a dialog; knows nothing of requests.

import { $ } from "./elements.js";

// The token as typed, or null when the person closed the dialog. `refused`: the one before was not right.
export function tokenFromPerson(refused) {
  const dialog = $("token-dialog");
  $("token-problem").textContent = refused ? "That token was not accepted." : "";
  $("token").value = "";
  dialog.returnValue = "";
  if (!dialog.open) dialog.showModal();
  $("token").focus();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "send" ? $("token").value.trim() || null : null), { once: true }));
}

$("token-form").addEventListener("submit", (event) => { event.preventDefault(); $("token-dialog").close("send"); });
$("token-cancel").addEventListener("click", () => $("token-dialog").close());
