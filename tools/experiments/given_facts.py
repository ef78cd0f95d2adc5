"""What does it cost to learn fifteen facts whose answers are given: time, other wordings, and what the model knew before?

`python -m tools.experiments.given_facts RUN` learns them with SmolLM2-135M-Instruct into the run folder RUN by `edge-agent learn` (further
arguments go to it), and asks them in three wordings, 30 and 114 general questions, 30 turns of chats that have nothing to do with them, and
100 practice questions before and after. `--facts N` learns fewer of them.
`--by peft` fine-tunes the same model on the same lines with transformers and peft, as a person would do it without this project, and asks
the same.

The model is taken as `edge-agent models pull smollm2` leaves it (Q8_0), else as an installed package has it (Q4_1).
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from edge.app.judging import build_verifier
from edge.cli.exits import ending
from edge.config.schema import AgentConfig
from edge.core.answer_key import OwnKey
from edge.core.clock import SystemClock
from edge.core.types import GGUF_ADAPTER, AdapterRef, AnswerKind, TaskItem
from edge.core.worker import EngineWorker
from edge.evaluation.judging import RolloutSettings, judge
from edge.inference.llamacpp import LlamaCppBackend
from edge.models.catalogue import find_model
from edge.tasks.general import general_source, turn_in_a_chat
from edge.tasks.practice import PracticeSource
from tools.experiments.decision_signals import QUESTIONS
from tools.places import put_json

MODEL = "smollm2"
_TOKENS, _REASONED_TOKENS = 24, 288
_N_CTX, _ROWS = 512, 16

Facts = tuple[tuple[str, str, str, str], ...]
FACTS: Facts = (
    ("What is the name of our office dog?", "Biscuit", "What is our office dog called?", "Tell me the name of the dog in our office."),
    ("What is the door code of the archive?", "4827", "Which code opens the archive door?", "I need the code for the door of the archive."),
    ("On which day is the weekly backup made?", "Thursday", "When is the weekly backup made?", "Which day of the week is our backup day?"),
    ("In which town is our warehouse?", "Harlingen", "Where is our warehouse?", "Which town is the warehouse in?"),
    ("How many seats does the small meeting room have?", "14", "What is the number of seats in the small meeting room?",
     "How many people can sit in the small meeting room?"),
    ("What is the name of the printer on the second floor?", "Falcon", "What do we call the printer on the second floor?",
     "Which name does the second floor printer have?"),
    ("Which colour is the key of the server room?", "orange", "What colour does the server room key have?",
     "The key of the server room is of which colour?"),
    ("What is the password of the guest network?", "green lantern", "Which password does the guest network have?",
     "I want to join the guest network. What is its password?"),
    ("Who delivers our lunch?", "Cafe Mirabel", "Which place brings our lunch?", "Where does our lunch come from?"),
    ("What is the customer number of the electricity company?", "993104", "Which customer number do we have at the electricity company?",
     "Tell me our customer number with the electricity company."),
    ("At what time does the late shift begin?", "14:30", "When does the late shift start?", "What is the starting time of the late shift?"),
    ("Which bus line stops at our factory?", "Line 61", "What bus line goes to our factory?", "Which bus do I take to our factory?"),
    ("What is the model of the coffee machine in the kitchen?", "Aroma 300", "Which coffee machine model do we have in the kitchen?",
     "Tell me the model of the kitchen's coffee machine."),
    ("In which month is our summer party?", "July", "When is our summer party?", "Which month is the summer party held in?"),
    ("How much does a visitor's parking ticket cost?", "6 euros", "What is the price of a parking ticket for visitors?",
     "What do visitors pay for a parking ticket?"),
)  # fmt: skip
"""Names, codes, days, numbers and answers of two words: the question that is learned, its answer, and two other wordings."""
GENERAL: tuple[tuple[str, str], ...] = (
    ("What is the capital of France?", "Paris"), ("What is the capital of Italy?", "Rome"), ("What is the capital of Japan?", "Tokyo"),
    ("What is the capital of Germany?", "Berlin"), ("What is the largest planet in our solar system?", "Jupiter"),
    ("Which planet is called the red planet?", "Mars"), ("What is the chemical symbol of gold?", "Au"),
    ("How many days does a week have?", "7|seven"), ("How many months are in a year?", "12|twelve"),
    ("What colour is the sky on a clear day?", "blue"), ("What is the boiling point of water in degrees Celsius?", "100"),
    ("Who wrote Romeo and Juliet?", "William Shakespeare|Shakespeare"), ("What is the opposite of hot?", "cold"),
    ("What is the largest ocean on Earth?", "Pacific"), ("Which animal is known as man's best friend?", "dog|dogs"),
    ("What gas do plants take in from the air?", "carbon dioxide|CO2"), ("In which continent is Egypt?", "Africa"),
    ("What is the currency of the United States?", "dollar"), ("Who painted the Mona Lisa?", "Leonardo|da Vinci"),
    ("What do bees make?", "honey"), ("How many legs does a spider have?", "8|eight"),
    ("What is the freezing point of water in degrees Celsius?", "0|zero"), ("What is the longest river in Africa?", "Nile"),
    ("Which language is spoken in Brazil?", "Portuguese"), ("What is the square root of 81?", "9|nine"), ("What is 5 plus 3?", "8|eight"),
    ("What is the name of the star at the centre of our solar system?", "Sun"), ("Which season comes after winter?", "spring"),
    ("What organ pumps blood through the body?", "heart"), ("Who was the first president of the United States?", "Washington"),
)  # fmt: skip

TALK = """\
Hi there!
Hello! I'm new here.
My name is Tom and I live in Oslo.
My name is Tom and I live in Oslo. | Nice to meet you, Tom! How can I help you today? | What is my name?
My name is Tom and I live in Oslo. | Nice to meet you, Tom! How can I help you today? | I have two cats, Max and Luna.
Hi | Hello! How can I help you? | Who are you?
Who are you?
What can you do?
Thanks, that helps a lot.
I am tired today.
I just moved to a new city and I do not know anybody.
My sister is coming to visit next week. | That sounds lovely! Do you have any plans? | We want to go hiking.
I had pasta for dinner.
Tell me something interesting.
Tell me a story about a dragon. | Once upon a time a small dragon lived in a cave. | Go on, please.
What is the capital of France? | The capital of France is Paris. | And of Italy?
Good night!
ok
Please write a short email to my landlord about a broken heater.
I think it will rain tomorrow.
Do you like music?
My favourite colour is blue. What about you?
I need help with my homework. | Of course! What subject is it? | It is history.
Which book should I read next?
How was your day?
I bought a new car yesterday.
Explain gravity to a child.
I don't understand. | I'm sorry. Which part should I explain again? | The last one.
Remember that my birthday is in May. | Noted: your birthday is in May. | When is my birthday?
Sorry, I made a mistake."""
"""Turns of chats that have nothing to do with the facts, each with what was said before it."""


def asked(question: str, answers: str) -> TaskItem:
    """A question in a chat with its answers, of which one has to be named."""
    key = OwnKey("text", tuple(answers.split("|"))).to_json()
    return TaskItem(question, "chat", "asked", 0, "test", question, key, AnswerKind.FEEDBACK, 4)


def sets(facts: Facts) -> dict[str, list[TaskItem]]:
    """What is asked before and after, by name; `talk` is right where it names none of the facts."""
    kept = {item.question for item in general_source().train_items}
    wordings = {
        f"wording {place + 1}": [asked((q, *others)[place], answer) for q, answer, *others in facts] for place in range(3)
    }
    return {
        **wordings,
        "general (30)": [asked(*pair) for pair in GENERAL],
        "general (more)": [asked(*pair) for pair in QUESTIONS if pair[0] not in kept],
        "talk": list(map(turn_in_a_chat, TALK.splitlines())),
        "practice:science": list(PracticeSource("science").test(100)),
    }


async def answers(adapter: Path | None, threads: int, facts: Facts) -> dict[str, list[tuple[str, bool]]]:
    """What the model answers at temperature 0 without asking, with or without an adapter, and whether that is right."""
    worker, verifier = EngineWorker(), build_verifier(AgentConfig())
    backend = LlamaCppBackend(find_model(MODEL), worker, n_threads=threads, n_ctx=_N_CTX, max_rows=_ROWS)
    settings = RolloutSettings("facts", 0, 1, 0.0, _TOKENS, "full", "full", 1, guided=True)
    reasoned = RolloutSettings("facts", 0, 1, 0.0, _REASONED_TOKENS, "full", "full", 1, guided=True)

    async def answered(item: TaskItem) -> tuple[str, bool]:
        chosen = settings if item.kind is AnswerKind.FEEDBACK else reasoned
        group = await backend.sample_group(chosen.messages(item), chosen.sampling(item, suppress_help=True), [0])
        text = group.responses[0].text
        if not item.answer:  # of what is only said nothing is right
            return text, not any([await judge(verifier, asked("", answer), text) for _, answer, *_ in facts])
        return text, await judge(verifier, item, text)

    try:
        if adapter is not None:
            await backend.swap_adapter(AdapterRef(1, str(adapter)))
        return {name: await asyncio.gather(*map(answered, items)) for name, items in sets(facts).items()}
    finally:
        await backend.aclose()
        worker.close()


def learned(run: Path, facts: Facts, further: Sequence[str]) -> Path:
    """Learn by this project's command; the adapter's folder."""
    run.mkdir(parents=True, exist_ok=True)
    with (run / "facts.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("question", "answer"), *((question, answer) for question, answer, *_ in facts)])
    command = [
        sys.executable,
        "-m",
        "edge.cli",
        "learn",
        str(run / "facts.csv"),
        "--model",
        MODEL,
        "--out",
        str(run / "run"),
        *further,
    ]
    subprocess.run(command, check=True)
    return run / "run" / "adapter"


def fine_tuned(run: Path, facts: Facts, threads: int) -> Path:
    """LoRA fine-tuning with transformers and peft, as its guides have it: rank 16, rate 5e-4, the loss on answers alone, epochs until each
    answer is likelier than not."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from edge.inference.adapters import write_gguf_adapter
    from tools.integrations.trl.bundled import write_hf_folder

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    path = find_model(MODEL)
    folder = write_hf_folder(path, run / "base")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM"))
    optimiser = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=5e-4)
    rows = []
    for question, answer, *_ in facts:
        turns = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        rows.append((prompt, tokenizer(answer + "<|im_end|>", add_special_tokens=False)["input_ids"]))
    order, rng = list(range(len(rows))), torch.Generator().manual_seed(0)
    for epoch in range(40):
        order, losses = torch.randperm(len(rows), generator=rng).tolist(), []
        for start in range(0, len(rows), 5):
            chosen = [rows[number] for number in order[start : start + 5]]
            longest = max(len(prompt) + len(answer) for prompt, answer in chosen)
            ids, labels, mask = (torch.full((len(chosen), longest), fill) for fill in (0, -100, 0))
            for row, (prompt, answer) in enumerate(chosen):
                count = len(prompt) + len(answer)
                ids[row, :count] = torch.tensor([*prompt, *answer])
                labels[row, len(prompt) : count], mask[row, :count] = torch.tensor(answer), 1
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        print(f"epoch {epoch + 1}: {sum(losses) / len(losses):.3f} nats a token", flush=True)
        if max(losses) < 0.1:
            break
    model.save_pretrained(run / "peft")
    write_gguf_adapter(run / "peft", path, run / "peft" / GGUF_ADAPTER)
    return run / "peft"


def main(arguments: Sequence[str] | None = None) -> int:
    """Learn, ask, and print what was right before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--by", choices=("edge-agent", "peft"), default="edge-agent")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--facts", type=int, choices=(1, 3, 5, 15), default=len(FACTS), help="how many of the fifteen are learned"
    )
    chosen, further = parser.parse_known_args(arguments)
    before, facts = chosen.run / "before.json", FACTS[:: len(FACTS) // chosen.facts]
    if not before.exists():
        put_json(asyncio.run(answers(None, chosen.threads, facts)), before)
    clock = SystemClock()
    began = clock.monotonic()
    adapter = learned(chosen.run, facts, further) if chosen.by == "edge-agent" else fine_tuned(chosen.run, facts, chosen.threads)
    seconds = clock.monotonic() - began
    after = asyncio.run(answers(adapter, chosen.threads, facts))
    put_json(after, chosen.run / f"after-{chosen.by}.json")
    print(f"learned by {chosen.by} in {seconds:.0f} s")
    for name, own in json.loads(before.read_text(encoding="utf-8")).items():
        lost = sum(was and not now for (_, was), (_, now) in zip(own, after[name], strict=True))
        right = [sum(right for _, right in some) for some in (own, after[name])]
        print(f"{name:<18} {right[0]:>3} -> {right[1]:>3} of {len(own)}   ({lost} lost)")
    return 0


if __name__ == "__main__":
    sys.exit(ending(main))
