// Asking the person for the agent's token. Knows a dialog; knows nothing of requests.

import { $, answered } from "./elements.js";

// The token as typed, or null when the person closed the dialog. `refused`: the one before was not right.
export function tokenFromPerson(refused) {
  $("token-problem").textContent = refused ? "That token was not accepted." : "";
  $("token").value = "";
  return answered($("token-dialog"), $("token")).then((value) => value === "send" && $("token").value.trim() || null);
}

$("token-form").addEventListener("submit", (event) => { event.preventDefault(); $("token-dialog").close("send"); });
$("token-cancel").addEventListener("click", () => $("token-dialog").close());
