"""Cassettes: recorded cloud answers, one JSON object a line.

    {"request": "<sha256>", "result": {"text": "...", "usage": {"input_tokens": 9, "output_tokens": 5}, "upstream_id": "",
     "finish": "stop", "beyond_text": ""}, "charged_uusd": 0, "cached": false, "model": "default", "max_output_tokens": 512,
     "prompt_form": "full"}

`request` is a digest of messages, model, output limit, temperature and OpenAI's fields, never the request itself; `beyond_text` is JSON
text of the answer's calls of tools, or ""; `usage` may be null. The device knows a cloud LLM by its alias only, so an evaluation digests
the alias as the model: to play its file in a coordinator, give the upstream `model:` the alias's name. `model`, `max_output_tokens` and
`prompt_form` record how to ask again, so that a replay finds its answers whatever is configured.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from edge.core.errors import ConfigError
from edge.core.files import drop_cut_line
from edge.core.types import Message, TokenUsage
from edge.rpc.client import hex_of

_LINE_START = b'{"request": "'


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One answer. `usage` is None where the cloud LLM did not report it; `charged_uusd` and `cached` are as the ledger had them then.

    `model`, `max_output_tokens` and `prompt_form` are the request's.
    """

    text: str
    usage: TokenUsage | None
    upstream_id: str = ""
    finish: str = "stop"
    charged_uusd: int = 0
    cached: bool = False
    model: str = ""
    max_output_tokens: int = 0
    prompt_form: str = ""
    beyond_text: str = ""


def answer_digest(
    messages: Sequence[Message], model: str, max_output_tokens: int, temperature: float | None, openai_json: str = ""
) -> str:
    """What a recorded answer is found by: 64 hex digits."""
    turns = [[turn.role, turn.content] for turn in messages]
    content = [turns, model, max_output_tokens, hex_of(temperature), *([openai_json] if openai_json else [])]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode("ascii")).hexdigest()


def read_cassette(path: Path) -> dict[str, RecordedAnswer]:
    """Answers by digest; of two with the same digest the later one. Raises ConfigError: unreadable, or FILE:LINE of a damaged line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"cassette {path} cannot be read: {reason}") from error
    return dict(_read_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip())


def cassette_line(digest: str, answer: RecordedAnswer) -> str:
    """An answer as a line of the file."""
    fields = asdict(answer)
    result = {name: fields.pop(name) for name in ("text", "usage", "upstream_id", "finish", "beyond_text")}
    return json.dumps({"request": digest, "result": result, **fields}) + "\n"


def append_answer(path: Path, digest: str, answer: RecordedAnswer) -> None:
    """Add one line and hand it to the disk, so that an answer that was paid for is not lost with the process."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(cassette_line(digest, answer))
        stream.flush()
        os.fsync(stream.fileno())


def open_for_recording(path: Path) -> dict[str, RecordedAnswer]:
    """What the file holds, {} for a new one; afterwards lines can be appended.

    A last line that a killed writer left unfinished is removed. Raises ConfigError when the file is no cassette or cannot be written.
    """
    try:
        path.open("ab").close()
        drop_cut_line(path, _LINE_START)
    except OSError as error:
        raise ConfigError(f"cassette {path} cannot be written: {error.strerror}") from error
    return read_cassette(path)


def _read_line(path: Path, number: int, line: str) -> tuple[str, RecordedAnswer]:
    try:
        entry = json.loads(line)
        result, usage = entry["result"], entry["result"]["usage"]
        beyond = _text(result["beyond_text"])
        if beyond and not isinstance(json.loads(beyond), dict):
            raise TypeError("expected the text of a JSON object")
        return _text(entry["request"]), RecordedAnswer(
            text=_text(result["text"]),
            usage=None if usage is None else TokenUsage(_count(usage["input_tokens"]), _count(usage["output_tokens"])),
            upstream_id=_text(result["upstream_id"]),
            finish=_text(result["finish"]),
            charged_uusd=_count(entry["charged_uusd"]),
            cached=bool(entry["cached"]),
            model=_text(entry["model"]),
            max_output_tokens=_count(entry["max_output_tokens"]),
            prompt_form=_text(entry["prompt_form"]),
            beyond_text=beyond,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}:{number}: not a cassette line ({type(error).__name__}: {error})",
            hint="remove the line, or record the answer again",
        ) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r}")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"expected a whole number, found {value!r}")
    return value
