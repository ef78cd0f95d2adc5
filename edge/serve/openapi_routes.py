"""Every route of the endpoint but the page's files, for its description. A route has its line here; a test holds the two together."""

from __future__ import annotations

from edge.serve.openapi import Operation
from edge.serve.openapi_shapes import COUNT, FLAG, IDS, TEXT, TOLD_HEADERS, list_of, record

_TASK_TEXT = {"type": "string"}
"""White space around it and an empty one are no mistakes of a header's, so the label's form is not told here."""
_TASK = {"name": "x-edge-task", "in": "header", "required": False, "schema": _TASK_TEXT, "description": "The task's label."}
_AFTER = {"name": "after", "in": "query", "required": False, "schema": {"type": "integer", "minimum": 0, "maximum": 10**12 - 1}}
_TEXT = {"type": "string", "minLength": 1}
_CHOICE = (
    {"name": "limit", "in": "query", "required": False, "schema": {"type": "integer", "minimum": 1, "maximum": 500}},
    {"name": "before", "in": "query", "required": False, "schema": {"type": "integer", "minimum": 0, "maximum": 10**12 - 1}},
)

OPENAI = (
    Operation(
        "POST", "/v1/chat/completions", "Answer a conversation.", "ChatCompletion", "ChatRequest", (_TASK,), (404, 503),
        stream=True, answer_headers=TOLD_HEADERS,
    ),
    Operation("GET", "/v1/models", "The models that can be asked.", "Models"),
    Operation(
        "GET", "/v1/models/{name}", "One of them.", "Model",
        parameters=({"name": "name", "in": "path", "required": True, "schema": _TEXT},), failures=(404,),
    ),
    Operation("GET", "/v1/usage", "What was used and what is left.", "Usage"),
)  # fmt: skip

COMPLETIONS = (
    Operation(
        "POST",
        "/v1/completions",
        "Continue plain texts, on this machine.",
        "Completion",
        "CompletionRequest",
        failures=(404,),
        stream=True,
    ),
    Operation("POST", "/tokenize", "The ids of a text.", "Tokens", record({"prompt": TEXT})),
    Operation("POST", "/detokenize", "The text of ids.", record({"prompt": TEXT}), record({"tokens": IDS})),
    Operation("GET", "/tokenizer_info", "Special tokens and the chat template.", record({"vocab_size": COUNT})),
)
"""Where there is a model that continues plain texts."""

HEALTH = (
    Operation("GET", "/health", "Whether the endpoint answers at all.", "Alive", open=True),
    Operation("GET", "/health/ready", "Whether questions can be answered.", "Ready", also={503: "Ready"}),
    Operation("GET", "/openapi.json", "This description.", {"type": "object", "required": ["openapi", "paths"]}),
)

CONTROL = (
    Operation("GET", "/api/status", "What the agent is doing now.", "Status"),
    Operation("GET", "/api/steps", "Learning steps, oldest first.", list_of("steps", "Step"), parameters=(_AFTER,)),
    Operation(
        "GET", "/api/why/{answer_id}", "How one answer came about.", "Record",
        parameters=({"name": "answer_id", "in": "path", "required": True, "schema": _TEXT},), failures=(404,),
    ),
    Operation("GET", "/api/adapters", "The adapter versions on disk.", list_of("adapters", "Adapter")),
    Operation("POST", "/api/adapters/rollback", "Go back to a version.", "Line", "Rollback", failures=(404,)),
    Operation("POST", "/api/feedback", "Keep what a person thinks of an answer.", "Feedback", "Feedback", failures=(404,)),
    Operation("POST", "/api/learning", "Pause or resume learning.", record({"paused": FLAG, "waiting": TEXT}), record({"paused": FLAG})),
    Operation(
        "GET", "/api/report", "What was learned, gained, forgotten and spent.", "Report",
        parameters=({"name": "since", "in": "query", "required": False, "schema": {"type": "number", "minimum": 0, "maximum": 10**12}},),
    ),
    Operation("GET", "/api/sent", "What left the device, newest first.", "Sent", parameters=_CHOICE),
    Operation(
        "GET", "/api/sent/{entry_id}", "One of these with its content.", "Departure",
        parameters=({"name": "entry_id", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}},), failures=(404,),
    ),
    Operation("GET", "/api/budget", "The budgets of all tasks, and how often each may ask.", "Budgets"),
    Operation("POST", "/api/budget", "Turn the dial of a task, or of every one.", "Budgets", "Dial"),
    Operation("POST", "/api/budget/forget", "Strike out the dial of a label.", "Budgets", "Label", failures=(404,)),
    Operation("POST", "/api/budget/pause", "Ask no cloud until resumed, or again.", "Budgets", record({"paused": FLAG})),
    Operation(
        "POST", "/api/whatif", "What other rates would have meant for recorded answers.", "WhatIf", "WhatIfRequest", failures=(409,)
    ),
)  # fmt: skip

OPERATIONS = (*OPENAI, *HEALTH, *CONTROL)
