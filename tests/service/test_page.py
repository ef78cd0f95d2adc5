"""The agent's page in a real browser, over a scripted agent: content, requests, keyboard use, and lost connections."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from edge.core.errors import CoordinatorUnavailable
from edge.serve.endpoint import _PAGE
from tests.worlds import page_checks as checks
from tests.worlds.browser import CHROMIUM, START_TIMEOUT_S, Browser, Page
from tests.worlds.page_agent import PageAgent, Stage, lived_in_agent, new_agent, note, open_stage, page_of, sent

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium to test the page"),
    pytest.mark.asyncio(loop_scope="module"),
]

VIEWS = ("chat", "budget", "learning", "outbox")
FILLED = {
    "chat": "true",
    "budget": "document.querySelectorAll('.dial').length === 4"
    " && ['rate', 'spend'].every((one) => !!document.querySelector(`#${one}-place polyline`))",
    "learning": "document.querySelectorAll('#adapters tr').length > 3 && document.querySelectorAll('#report tr').length === 3"
    " && !!document.querySelector('#accuracy-place polyline')",
    "outbox": "document.querySelectorAll('#sent-list li').length === 50 && !!document.querySelector('#waiting').textContent",
}
FOCUS = """(() => { const one = document.activeElement, style = getComputedStyle(one);
  const place = [...document.querySelectorAll('*')].indexOf(one);
  return [one === document.body, place, parseFloat(style.outlineWidth), style.outlineStyle]; })()"""
PLAIN = {
    "She has \\boxed{37} apples.": "She has 37 apples.",
    "\\boxed{\\frac{1}{2}} or \\boxed{\\{1\\}}": "\\frac{1}{2} or \\{1\\}",
    "cut \\boxed{12": "cut 12",
    "cut \\boxed{\\frac{1}{2}": "cut \\frac{1}{2}",
    "```tex\n\\boxed{7}\n``` and \\boxed{8}": "```tex\n\\boxed{7}\n``` and 8",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    async with open_stage() as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="module")
async def tab(browser: Browser) -> AsyncIterator[Page]:
    """A tab that may complain."""
    async with browser.tab() as tab:
        yield tab


@pytest_asyncio.fixture(loop_scope="module")
async def page(tab: Page) -> AsyncIterator[Page]:
    """A tab in which nothing may go wrong."""
    yield tab
    refused = "/api/whatif"  # a browser notes every refusal
    assert [one for one in tab.complaints if refused not in one] == []


@pytest.fixture
def agent() -> PageAgent:
    return lived_in_agent()


async def arrive(page: Page, url: str, view: str = "chat", width: int = 1280, height: int = 900) -> None:
    await page.open("about:blank")
    await page.open(f"{url}/#{view}", width, height)
    await page.until("!['', 'connecting …'].includes(document.getElementById('headline').textContent)")


async def text_of(page: Page, selector: str) -> str:
    return re.sub(r"\s+", " ", await page.value(f"document.querySelector({selector!r}).innerText")).strip()


async def focus(page: Page, selector: str) -> None:
    await page.value(f"document.querySelector({selector!r}).focus()")


async def focused(page: Page) -> str:
    return str(
        await page.value("document.activeElement.id || document.activeElement.textContent || document.activeElement.tagName")
    )


async def key(page: Page, name: str) -> None:
    await page.press(name, {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35}[name])


async def space(page: Page) -> None:
    for kind in ("keyDown", "keyUp"):
        text = {"text": " "} if kind == "keyDown" else {}
        await page.send("Input.dispatchKeyEvent", type=kind, key=" ", code="Space", windowsVirtualKeyCode=32, **text)


async def send_question(page: Page, text: str) -> None:
    await focus(page, "#question")
    await page.type(text)
    await key(page, "Enter")


async def ask(page: Page, text: str) -> None:
    """Ask and wait until the answer is there."""
    before = await page.value("document.querySelectorAll('.answer').length")
    await send_question(page, text)
    await page.until(f"document.querySelectorAll('.answer').length > {before} && !document.querySelector('.waiting')")


def button(text: str) -> str:
    found = f"[...document.querySelectorAll('button:enabled')].filter((one) => one.textContent === {text!r})"
    return f"{found}.filter((one) => one.checkVisibility()).at(-1)"


async def press_button(page: Page, text: str) -> None:
    """By keyboard: focus it as soon as it is there, and press Enter."""
    await page.until(f"(one => {{ one?.focus(); return !!one && document.activeElement === one; }})({button(text)})")
    await key(page, "Enter")


async def refresh_now(page: Page) -> None:
    """Have the page ask how the agent is, as one does that was hidden and is seen again."""
    await page.value("document.dispatchEvent(new Event('visibilitychange'))")


async def revisit(page: Page, view: str) -> None:
    """Leave a view and return: it polls the agent immediately then, and not only every few seconds."""
    await page.value("location.hash = '#chat'")
    await page.until("!document.getElementById('view-chat').hidden")
    await page.value(f"location.hash = '#{view}'")


async def happens(what: Callable[[], bool], describe: Callable[[], object]) -> None:
    """Wait until something is so on the agent's side. Raises AssertionError with its last state when it is not."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not what():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"it never happened; last: {describe()}") from None


async def wait_for(agent: PageAgent, path: str, count: int = 1) -> list[object]:
    await happens(lambda: len(agent.bodies_of(path)) >= count, lambda: agent.bodies_of(path))
    return agent.bodies_of(path)


# ---------------------------------------------------------------- chat


async def test_answer_grows_without_moving_the_page_and_is_announced_once(page: Page, stage: Stage, agent: PageAgent) -> None:
    gate = asyncio.Event()
    agent.answers.pieces = [
        "<think>\nStep 1\n</think>\n<answer>",
        *[f"line {number}\n" for number in range(12)],
        "the end",
        "</answer>",
    ]
    agent.answers.wait_before = {6: gate}
    await arrive(page, stage.show(agent))
    await page.value("""window.moved = 0; window.announced = [];
      new PerformanceObserver((list) => list.getEntries().forEach((entry) => { moved += entry.value; }))
        .observe({ type: 'layout-shift' });
      new MutationObserver(() => announced.push(document.getElementById('announcer').textContent))
        .observe(document.getElementById('announcer'), { childList: true, characterData: true, subtree: true });""")
    await send_question(page, "count")
    await page.until("document.querySelector('.answer .text')?.textContent.includes('line 3')")
    assert "the end" not in await text_of(page, ".answer .text")
    assert await page.value("document.querySelector('.reasoning').open") is False
    assert await page.value("document.getElementById('log').ariaLive") == "off"
    gate.set()
    await page.until(
        "document.querySelector('.answer .text').textContent.includes('the end') && !!document.querySelector('.answer-head .badge')"
    )
    await page.until("announced.some((text) => text.includes('the end'))")
    announced = [text for text in await page.value("announced") if text]
    assert announced[0] == "Working on it" and announced[1].startswith("Answered on this device. line 0") and len(announced) == 2
    assert await page.value("moved") < 0.05
    assert await focused(page) == "question"


async def test_enter_sends_shift_enter_adds_a_line_and_a_conversation_lasts_until_a_new_chat(
    page: Page, stage: Stage, agent: PageAgent
) -> None:
    await arrive(page, stage.show(agent))
    await focus(page, "#question")
    await page.type("one")
    shift = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": 8, "text": "\r"}
    for kind in ("keyDown", "keyUp"):
        await page.send("Input.dispatchKeyEvent", type=kind, **shift)
    assert agent.answers.asked == []
    await ask(page, "two")
    await ask(page, "second")
    await press_button(page, "New chat")
    assert await page.value("document.getElementById('log').children.length") == 0
    await ask(page, "third")
    asked = [[message.content for message in question.messages] for question in agent.answers.asked]
    assert asked == [["one\ntwo"], ["one\ntwo", "She has \\boxed{37} apples.", "second"], ["third"]]


@pytest.mark.parametrize("form", ["full", "compact"])
async def test_steps_can_be_asked_for_of_a_model_that_answers_plainly(
    page: Page, stage: Stage, agent: PageAgent, form: str
) -> None:
    agent.control.state = {**agent.control.state, "model": {**agent.control.state["model"], "prompt_form": form}}
    await arrive(page, stage.show(agent))
    hidden = await page.value("document.getElementById('reasoned-choice').hidden")
    assert hidden == (form == "compact")
    await page.value("document.getElementById('reasoned').click()")
    await ask(page, "How many?")
    assert [question.reasoned for question in agent.answers.asked] == [form == "full"]


async def test_a_text_is_sorted_by_itself_under_the_chosen_task(page: Page, stage: Stage, agent: PageAgent) -> None:
    sorting = {"folder": {"ask": "Which folder does this mail belong to?", "options": ["Team", "Travel plans"]}}
    agent.control.state = {**agent.control.state, "text_tasks": sorting}
    await arrive(page, stage.show(agent))
    assert (
        await page.value("document.getElementById('task').textContent")
        == "a questionfolder: Which folder does this mail belong to?"
    )
    await ask(page, "one")
    await page.value(
        "(task => { task.value = 'folder'; task.dispatchEvent(new Event('change')); })(document.getElementById('task'))"
    )
    await ask(page, "Lunch at noon?")
    await page.value("(task => { task.value = ''; task.dispatchEvent(new Event('change')); })(document.getElementById('task'))")
    await ask(page, "two")
    asked = [(question.task, [message.content for message in question.messages]) for question in agent.answers.asked]
    assert [(task, texts[0], texts[-1], len(texts)) for task, texts in asked] == [
        (None, "one", "one", 1),
        ("folder", "Lunch at noon?", "Lunch at noon?", 1),
        (None, "one", "two", 3),
    ]


async def test_without_a_task_of_texts_there_is_nothing_to_choose(page: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(page, stage.show(agent))
    assert await page.value("document.getElementById('task').hidden")


async def test_boxes_are_unwrapped_whatever_they_hold_and_code_stays_unchanged(
    page: Page, stage: Stage, agent: PageAgent
) -> None:
    await arrive(page, stage.show(agent))
    for text, wanted in PLAIN.items():
        assert await page.value(f"import('/page/prose.js').then(({{ plain }}) => plain({json.dumps(text)}))") == wanted


async def test_a_box_is_shown_as_one_while_it_grows_and_where_it_is_cut(page: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(page, stage.show(agent))
    texts = json.dumps(["cut \\boxed{", "cut \\boxed{1", "cut \\boxed{12"])
    show = f"const node = document.createElement('p'); {texts}.forEach((text) => showProse(node, text)); return node.innerHTML;"
    shown = await page.value(f"import('/page/prose.js').then(({{ showProse }}) => {{ {show} }})")
    assert shown == 'cut <strong class="boxed">12</strong>'


async def test_each_dial_says_what_the_log_odds_that_it_moves_are_worth(page: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(page, stage.show(agent), "budget")
    await page.until(FILLED["budget"])
    said = await page.value(
        "[...document.querySelectorAll('.dial')].map((one) => one.querySelector('.ranking')?.textContent ?? '')"
    )
    for words, part in zip(said, ("says nothing", "better than chance", "too few judged answers (0)"), strict=False):
        assert part in words
    assert said[0].startswith("Help log-odds: AUC 0.52 (") and said[3:] == [""], "the dial of every task has none of its own"


async def test_answer_shows_its_source_is_explained_and_judged_by_keyboard(page: Page, stage: Stage, agent: PageAgent) -> None:
    agent.answers.note = note("cloud")
    await arrive(page, stage.show(agent))
    await ask(page, "Mia has 14 apples and buys 23 more")
    head = await text_of(page, ".answer-head")
    assert head.startswith(f"cloud {note('cloud').reason}") and "0.000099 USD" in head and "adapter 6" in head
    assert await text_of(page, ".answer .text") == "She has 37 apples."
    assert "14 + 23 = 37" in await page.value("document.querySelector('.thoughts').textContent")
    await press_button(page, "Why?")
    await page.until("!!document.querySelector('.why h3')")
    shown = await text_of(page, ".why")
    for part in (
        "the dial (τ 20 %) added -0.70",
        "says nothing about right and wrong yet",
        "λ 0.500",
        "Charged 0.000099 USD",
        "It is 37.",
        "nano-cloud",
    ):
        assert part in shown, part
    await key(page, "Escape")
    assert not await page.value("!!document.querySelector('.why')")
    assert await focused(page) == "Why?"
    await press_button(page, "Good")
    await page.until("document.querySelector('[data-verdict=good]').ariaPressed === 'true'")
    await press_button(page, "Good")
    await page.until("document.querySelector('[data-verdict=good]').ariaPressed === 'false'")
    await press_button(page, "Bad")
    await page.until("document.activeElement.tagName === 'TEXTAREA' && document.activeElement.id !== 'question'")
    await page.type("It is 4 <b>")
    await press_button(page, "Send correction")
    feedback = await wait_for(agent, "/api/feedback", 4)
    given = [("good", None), ("none", None), ("bad", None), ("bad", "It is 4 <b>")]
    name = agent.answers.asked[0].id
    assert feedback == [{"id": name, "verdict": verdict, "correction": correction} for verdict, correction in given]


async def test_stop_ends_the_answer_keeps_its_text_and_allows_asking_again(page: Page, stage: Stage, agent: PageAgent) -> None:
    agent.answers.pieces = ["<answer>", "half of it", " the rest", "</answer>"]
    agent.answers.wait_before = {2: asyncio.Event()}
    await arrive(page, stage.show(agent))
    await send_question(page, "long")
    await page.until("document.querySelector('.answer .text')?.textContent.includes('half of it')")
    await key(page, "Escape")
    await page.until("document.querySelector('.answer-head').textContent.includes('You stopped')")
    assert await text_of(page, ".answer .text") == "half of it"
    await happens(lambda: agent.answers.closed > 0, lambda: agent.answers.asked)
    agent.answers.wait_before = {}
    await press_button(page, "Try again")
    await page.until("document.querySelector('.answer .text')?.textContent.includes('the rest')")
    assert await page.value("document.querySelectorAll('.answer').length") == 1
    assert [message.content for message in agent.answers.asked[-1].messages] == ["long"]


async def test_reload_keeps_conversation_feedback_draft_and_place(page: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(page, stage.show(agent))
    await ask(page, "keep me")
    await press_button(page, "Good")
    await wait_for(agent, "/api/feedback")
    await page.until("document.querySelector('[data-verdict=good]').ariaPressed === 'true'")
    await focus(page, "#question")
    await page.type("half a que")
    await page.value(
        "document.getElementById('model').value = 'edge-local'; document.getElementById('model').dispatchEvent(new Event('change'))"
    )
    await page.value("location.hash = '#learning'")
    await page.reload()
    await page.until("document.getElementById('headline').textContent.includes('step 90')")
    assert not await page.value("document.getElementById('view-learning').hidden")
    await page.value("location.hash = '#chat'")
    await page.until("!document.getElementById('view-chat').hidden")
    assert "keep me" in await text_of(page, "#log") and "She has 37 apples." in await text_of(page, "#log")
    assert await page.value("document.querySelector('[data-verdict=good]').ariaPressed") == "true"
    assert await page.value("document.getElementById('question').value") == "half a que"
    assert await page.value("document.getElementById('model').value") == "edge-local"


async def test_a_correction_is_in_view_above_the_question_and_enter_sends_it(page: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(page, stage.show(agent))
    for number in range(4):
        await ask(page, f"question {number}")
    await page.value("[...document.querySelectorAll('[data-verdict=bad]')].at(-1).click()")
    await page.until("!!document.querySelector('.correction textarea')")
    sees = "(() => { const b = document.querySelector('.correction [type=submit]'), r = b.getBoundingClientRect();"
    await page.until(f"{sees} return document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2) === b; }})()")
    await page.type("38")
    await key(page, "Enter")
    feedback = await wait_for(agent, "/api/feedback", 2)
    assert (feedback[-1]["verdict"], feedback[-1]["correction"]) == ("bad", "38")


async def test_failure_in_the_middle_keeps_the_text_so_far(page: Page, stage: Stage, agent: PageAgent) -> None:
    agent.answers.failure, agent.answers.fail_after = CoordinatorUnavailable("the coordinator went away"), 4
    await arrive(page, stage.show(agent))
    await send_question(page, "half")
    await page.until("!!document.querySelector('.answer .problem')")
    assert await text_of(page, ".answer .text") == "She has 37"
    assert "the coordinator went away" in await text_of(page, ".answer-head")


async def test_code_block_can_be_copied(page: Page, stage: Stage, agent: PageAgent) -> None:
    program = "def f(xs):\n    return [x for x in xs if x < 3 & 1]"
    agent.answers.pieces = ["<answer>So:\n```py", f"thon\n{program[:20]}", f"{program[20:]}\n``", "`\ndone</answer>"]
    await arrive(page, stage.show(agent))
    await page.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    await ask(page, "write it")
    assert await page.value("document.querySelector('.code code').textContent") == program
    await page.value("""window.labels = [];
      new MutationObserver(() => labels.push(document.querySelector('.code button').textContent))
        .observe(document.querySelector('.code button'), { childList: true, characterData: true, subtree: true });""")
    await press_button(page, "Copy code")
    await page.until("labels[0] === 'Copied'")
    assert await page.value("navigator.clipboard.readText()") == program


# ---------------------------------------------------------------- budget


async def test_limit_is_typed_and_set_and_an_invalid_amount_is_reported(page: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(page, stage.show(agent), "budget")
    await page.until(FILLED["budget"])
    amount = "#limit input[data-unit=spend_limit_uusd]"
    assert await page.value(f"document.querySelector({amount!r}).value") == "0.01"
    await page.value(f"document.querySelector({amount!r}).select()")
    await page.type("five")
    await press_button(page, "Set limit")
    await page.until("document.querySelector('#limit .problem').textContent.includes('five')")
    assert agent.bodies_of("/api/budget/limit") == []
    await page.value(f"document.querySelector({amount!r}).select()")
    await page.type("5 USD")
    await press_button(page, "Set limit")
    limits = {"period": "month", "spend_limit_uusd": 5_000_000, "calls_limit": 100, "tokens_limit": 40_000}
    assert await wait_for(agent, "/api/budget/limit") == [limits]
    await page.until("document.querySelector('#limit').textContent.includes('5.00 USD')")
    await press_button(page, "Take off")
    assert await wait_for(agent, "/api/budget/limit", 2) == [limits, {"off": True}], "as edge-agent budget limit --off"


async def test_the_dial_is_typed_or_moved_by_keyboard_and_priced_before_it_is_set(
    page: Page, stage: Stage, agent: PageAgent
) -> None:
    await arrive(page, stage.show(agent), "budget")
    await page.until(FILLED["budget"])
    slider = ".dial input[type=range]"
    await focus(page, slider)
    for _ in range(5):
        await key(page, "ArrowRight")
    assert await page.value(f"document.querySelector({slider!r}).ariaValueText") == "25%"
    await page.until("document.querySelector('.whatif').textContent.includes('would have come from the cloud')")
    assert agent.bodies_of("/api/whatif")[-1] == {"target_rate": 0.25, "task": "math"} and agent.bodies_of("/api/budget") == []
    assert "15 would have come from the cloud (really: 20)" in await text_of(page, ".whatif")
    await key(page, "Enter")
    assert await wait_for(agent, "/api/budget") == [{"task": "math", "target_rate": 0.25}]
    await page.until("document.querySelector('.dial-facts').textContent.includes('25%')")
    await key(page, "End")
    await key(page, "Escape")
    assert await page.value(f"document.querySelector({slider!r}).value") == "25"
    await focus(page, ".dial .dial-text")
    await page.type("30 %")
    await key(page, "Enter")
    assert (await wait_for(agent, "/api/budget", 2))[1] == {"task": "math", "target_rate": "30 %"}
    await focus(page, ".dial input[type=checkbox]")
    await space(page)
    await press_button(page, "Let the model decide")
    assert (await wait_for(agent, "/api/budget", 3))[2] == {"task": "math", "target_rate": None}
    await page.until(f"document.querySelector({slider!r}).disabled")


async def hold_budgets(page: Page, method: str) -> None:
    """Replies of /api/budget to this method wait in `held` until they are called; `read` counts those that the page has read."""
    await page.value(
        """((method) => { const real = window.fetch; window.held = []; window.read = 0;
      const slow = (reply) => { const json = reply.json.bind(reply);
        reply.json = () => json().finally(() => setTimeout(() => { read += 1; }));
        return new Promise((go) => window.held.push(() => go(reply))); };
      const holds = (path, options) => path === '/api/budget' && (options.method ?? 'GET') === method;
      window.fetch = (path, options) => holds(path, options) ? real(path, options).then(slow) : real(path, options); })"""
        f"({method!r})"
    )


async def test_choice_made_while_the_reply_is_pending_stays(page: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(page, stage.show(agent), "budget")
    await page.until(FILLED["budget"])
    await hold_budgets(page, "POST")
    await focus(page, ".dial .dial-text")
    await page.type("30 %")
    await key(page, "Enter")
    await page.until("held.length === 1")
    await focus(page, ".dial input[type=checkbox]")
    await space(page)
    await page.value("held[0]()")
    await page.until("read === 1 && document.querySelector('.dial-facts').textContent.includes('30%')")
    await press_button(page, "Let the model decide")
    assert (await wait_for(agent, "/api/budget", 2))[1] == {"task": "math", "target_rate": None}


async def test_stale_reply_does_not_revert_a_switch(page: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(page, stage.show(agent), "budget")
    await page.until(FILLED["budget"])
    await hold_budgets(page, "GET")
    await revisit(page, "budget")
    await page.until("held.length === 1")
    await focus(page, "#pause-cloud")
    await space(page)
    await page.until("document.getElementById('pause-cloud').ariaChecked === 'true'")
    assert agent.bodies_of("/api/budget/pause") == [{"paused": True}]
    assert "all answers come from this device" in await text_of(page, "#switched-off")
    await page.value("held[0]()")
    await page.until("read === 1")
    assert await page.value("document.getElementById('pause-cloud').ariaChecked") == "true"
    agent.control.budgets |= {"paused": False}  # elsewhere; what is asked for from now on counts again
    await revisit(page, "budget")
    await page.until("held.length === 2")
    await page.value("held[1]()")
    await page.until("document.getElementById('pause-cloud').ariaChecked === 'false'")


# ---------------------------------------------------------------- learning


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (
            {"part": "rollout", "done": 12, "of": 32, "tokens": 1840, "left_s": 14.2},
            "answering 12 of 32 responses, 1,840 tokens, 14 s left",
        ),
        ({"part": "given", "done": 1, "of": 0, "tokens": 40, "left_s": None}, "looking at given answers, 1 response, 40 tokens"),
        ({"part": "update", "done": 300, "of": 400, "tokens": 0, "left_s": 6.0}, "updating 75%, 6 s left"),
        (
            {"part": "imitation", "done": 3, "of": 16, "tokens": 0, "left_s": 40.0},
            "learning given answers, update 3 of at most 16, at most 40 s left",
        ),
        ({"part": "close", "done": 0, "of": 1, "tokens": 0, "left_s": None}, "reporting"),
    ],
    ids=lambda value: value["part"] if isinstance(value, dict) else "",
)
async def test_learning_shows_what_a_step_under_way_is_at(
    page: Page, stage: Stage, agent: PageAgent, progress: dict[str, Any], words: str
) -> None:
    agent.control.state["progress"] = {"step": 7, **progress}
    await arrive(page, stage.show(agent), "learning")
    await page.until(f"document.querySelector('#learning-state').textContent.includes({json.dumps(f'step 7: {words}')})")
    agent.control.state["progress"] = None
    await page.until("!document.querySelector('#learning-state').textContent.includes('step 7:')")


async def test_learning_shows_curves_and_the_report_and_can_be_paused(page: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(page, stage.show(agent), "learning")
    await page.until(FILLED["learning"])
    await page.until("document.querySelectorAll('#accuracy-place svg').length === 2")  # one for each task
    shown = await text_of(page, "#report")
    for part in (
        "52 (65%) → 58 (72.5%)",
        "gained How many apples? 36 (wrong) → 37 (right)",
        "Rejected because math fell",
        "Who barks? adapter 60: Ilka (right) → Rex (wrong)",
    ):
        assert part in shown, part
    await press_button(page, "Pause learning")
    await page.until("document.querySelector('#learning-state .state').textContent === 'Paused by you'")
    await press_button(page, "Go on learning")
    await page.until("document.querySelector('#learning-state .state').textContent === 'Learning'")
    assert agent.bodies_of("/api/learning") == [{"paused": True}, {"paused": False}]


async def test_rollback_asks_for_confirmation_and_restores_the_focus(page: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(page, stage.show(agent), "learning")
    await page.until(FILLED["learning"])
    await page.value("[...document.querySelectorAll('#adapters button')].find((one) => one.dataset.version === '75').focus()")
    await key(page, "Enter")
    await page.until("document.getElementById('confirm').open")
    assert await focused(page) == "confirm-no"
    await key(page, "Escape")
    await page.until("!document.getElementById('confirm').open")
    assert await page.value("document.activeElement.dataset.version") == "75"
    assert agent.control.versions[-1]["serving"]
    await key(page, "Enter")
    await key(page, "Tab")
    await key(page, "Enter")
    await page.until("document.getElementById('announcer').textContent === 'Rolled back to version 75'")
    assert [known["version"] for known in agent.control.versions if known["serving"]] == [75]


async def test_new_steps_are_drawn_as_they_come(page: Page, stage: Stage, agent: PageAgent) -> None:
    more = lived_in_agent(100).control.log
    await arrive(page, stage.show(agent), "learning")
    await page.until(FILLED["learning"])
    agent.control.log = more
    agent.control.state["steps_done"] = 100
    await refresh_now(page)
    await page.until("document.querySelectorAll('#accuracy-place svg')[1].textContent.includes('step 100')")
    asked = [urlsplit(one).query for one in page.requested if "/api/steps" in one]
    assert asked == ["after=0", "after=90"]


# ---------------------------------------------------------------- outbox


async def test_outbox_shows_every_byte_sent_and_what_was_withheld(page: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(page, stage.show(agent), "outbox")
    await page.until(FILLED["outbox"])
    first = await text_of(page, "#sent-list li")
    assert "46 bytes" in first and "replaced: 1 × email" in first
    await focus(page, ".opener")
    await key(page, "Enter")
    await page.until("!!document.querySelector('.payload pre')")
    shown, encoded = await page.value("[...document.querySelectorAll('.payload code')].map((one) => one.textContent)")
    assert json.loads(shown) == agent.control.departed[0]["payload"] and "[EMAIL_1]" in shown
    assert encoded == agent.control.departed[0]["payload_base64"]
    agent.control.departed.insert(0, sent(61))
    await page.until("document.querySelectorAll('#sent-list li').length === 51")
    assert await page.value("document.activeElement === document.querySelectorAll('.opener')[1]"), "it stays where it was"
    await press_button(page, "Older")
    await page.until("document.querySelectorAll('#sent-list li').length === 61")
    agent.control.departed[:0] = [{**sent(number, "learning"), "outcome": "no route"} for number in range(160, 61, -1)]
    await revisit(page, "outbox")
    assert await text_of(page, "#sent-list .badge") == "a question", "a person's questions come first"
    await page.value("document.querySelector('#traffic summary').click()")
    await page.until("document.querySelector('#traffic-list li')?.textContent.includes('did not leave: no route')")
    assert "25 of 128 responses asked" in await text_of(page, "#waiting")


# ---------------------------------------------------------------- away and back, token


async def test_lost_coordinator_is_reported_and_answers_continue(page: Page, stage: Stage, agent: PageAgent) -> None:
    agent.control.state |= {"online": False, "offline_reason": "no route to the coordinator"}
    await arrive(page, stage.show(agent))
    assert "offline: no route to the coordinator" in await text_of(page, "#headline")
    await ask(page, "still there?")
    assert await text_of(page, ".badge") == "local"
    agent.control.state["online"] = True
    await refresh_now(page)
    await page.until("document.getElementById('headline').className === ''")


async def test_agent_restart_loses_nothing_typed(tab: Page, agent: PageAgent) -> None:
    async with page_of(agent) as url:
        await arrive(tab, url)
        await ask(tab, "before")
    await tab.until("document.getElementById('headline').className === 'alarm'")
    await send_question(tab, "while away")
    await tab.until("!!document.querySelector('.answer .problem')")
    assert "The agent does not answer" in await text_of(tab, ".answer:last-of-type .answer-head")
    await tab.type("and a draft")
    async with page_of(agent, urlsplit(url).port or 0):
        await tab.until("document.getElementById('headline').textContent.includes('step 90')")
        assert await tab.value("document.getElementById('question').value") == "and a draft"
        await press_button(tab, "Try again")
        await tab.until("document.querySelectorAll('.badge.local').length === 2")
        assert [message.content for message in agent.answers.asked[-1].messages][::2] == ["before", "while away"]


async def test_token_is_asked_once_kept_for_the_tab_and_never_shown(tab: Page, stage: Stage, agent: PageAgent) -> None:
    agent = lived_in_agent(token="open sesame")
    url = stage.show(agent)
    await tab.open(f"{url}/#budget")
    await tab.until("document.getElementById('token-dialog').open && document.activeElement.id === 'token'")
    await key(tab, "Escape")
    await tab.until("document.getElementById('token-open').checkVisibility()")
    await press_button(tab, "Enter the token")
    await tab.until("document.activeElement.id === 'token'")
    await tab.type("wrong")
    await key(tab, "Enter")
    await tab.until("document.getElementById('token-problem').textContent.includes('not accepted')")
    await tab.type("open sesame")
    await key(tab, "Enter")
    await tab.until(FILLED["budget"])
    await tab.value("location.hash = '#chat'")
    await ask(tab, "hello")
    await tab.reload()
    await tab.until("document.getElementById('headline').textContent.includes('step 90')")
    assert not await tab.value("document.getElementById('token-dialog').open")
    assert not [one for one in tab.requested if "sesame" in one]


async def test_failed_request_is_reported_in_its_place_and_the_rest_works(tab: Page, stage: Stage) -> None:
    routes = {"/api/budget", "/api/feedback", "/api/sent", "/api/report", "/api/learning", "/api/whatif"}
    agent = lived_in_agent(failing=frozenset(routes))
    url = stage.show(agent)
    for view, place in (("budget", "#dials"), ("learning", "#report"), ("outbox", "#sent")):
        await arrive(tab, url, view)
        await tab.until(f"document.querySelector('{place}').previousElementSibling.textContent === 'the disk is full'")
    await arrive(tab, url, "budget")
    assert "31 of 100 used" in await text_of(tab, "#quota")
    assert await tab.value("document.getElementById('pause-cloud').hidden")
    await arrive(tab, url, "learning")
    await press_button(tab, "Pause learning")
    await tab.until("document.getElementById('learning-problem').textContent === 'the disk is full'")
    await arrive(tab, url)
    await ask(tab, "hello")
    await press_button(tab, "Good")
    await tab.until("document.querySelector('.correction')?.textContent === 'the disk is full'")
    assert await tab.value("document.querySelector('[data-verdict=good]').ariaPressed") == "false"
    assert not [one for one in tab.complaints if "exceptionThrown" in one or "TypeError" in one]


async def test_new_agent_shows_what_is_still_missing(page: Page, stage: Stage) -> None:
    url = stage.show(new_agent())
    await arrive(page, url, "budget")
    await page.until("document.getElementById('dials').textContent.includes('No task has a dial yet')")
    assert "nothing yet" in await page.value("document.querySelector('#rate-place svg').getAttribute('aria-label')")
    await arrive(page, url, "learning")
    await page.until("document.getElementById('adapters').textContent.includes('Nothing was learned yet')")
    await page.until("document.getElementById('report').textContent.includes('Nothing was examined')")
    await arrive(page, url, "outbox")
    await page.until("document.getElementById('sent').textContent.includes('Nothing that you asked has left this device')")
    await page.until("document.getElementById('waiting').textContent === 'Nothing waits.'")


# ---------------------------------------------------------------- safety and access

MARKUP = """<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"><svg onload=document.title='owned'>
</textarea><iframe srcdoc='<script>parent.document.title=1</script>'>javascript:document.title='owned'
```html
<b onclick=alert(1)>x</b>
```\\boxed{<i>7</i>}{{constructor.constructor('document.title=1')()}}"""


@pytest.mark.parametrize("text", [MARKUP, "__proto__"], ids=["markup", "a name of every object"])
async def test_external_text_never_becomes_markup(page: Page, stage: Stage, text: str) -> None:
    agent = lived_in_agent(4)
    control = agent.control
    agent.answers.pieces, agent.answers.note = [f"<think>{text}</think><answer>", text, "</answer>"], note("local", reason=text)
    control.log = [{**one, "task": text} for one in control.log]
    hostile = dict.fromkeys(("task", "gate", "gate_reason", "damage"), text)
    control.versions = [{**control.versions[-1], **hostile, "version": 3, "serving": False}]
    control.state |= {
        **dict.fromkeys(("waiting", "task", "coordinator", "mode"), text),
        "model": {**control.state["model"], "name": text},
    }
    control.state["steps_done"] = 4
    control.state["quota"] |= dict.fromkeys(("line", "state", "task"), text)
    dial = control.budgets["tasks"][0]["dial"]
    hostile_dial = {**dial, "task": text, "ranking": {**dial["ranking"], "words": text}}
    control.budgets["tasks"] = [{**control.budgets["tasks"][0], **control.state["quota"], "dial": hostile_dial}]
    control.budgets["switched_off"] = control.decision = control.remark = text
    tasks = [{**one, "source": text} for one in control.prepared_report["tasks"]]
    waits = [{"reason": text, "times": 1, "seconds": 1}]
    control.prepared_report = {**control.prepared_report, "tasks": tasks, "waits": waits}
    left = {**dict.fromkeys(("why", "outcome", "answer_id"), text), "replaced": {text: 1}, "payload": {text: text}}
    control.departed = [{**sent(1), **left}]
    control.waiting_reports = [{**control.waiting_reports[0], "task": text}]
    url = stage.show(agent)
    await arrive(page, url)
    await ask(page, text.replace("\n", " "))
    await press_button(page, "Why?")
    filled = {"budget": ".dial", "learning": "#adapters tr", "outbox": ".opener"}
    for view, place in filled.items():
        await page.value(f"location.hash = '#{view}'")
        await page.until(f"!document.getElementById('view-{view}').hidden && !!document.querySelector('{place}')")
    await page.value("document.querySelector('.opener').click()")
    await page.until("!!document.querySelector('.payload code')")
    assert json.loads(await page.value("document.querySelector('.payload code').textContent")) == {text: text}
    turn = "(one => { one.value = 50; one.dispatchEvent(new Event('input')); })(document.querySelector('.dial input'))"
    await page.value(f"location.hash = '#budget'; {turn}")
    await page.until("document.querySelectorAll('.whatif')[0].textContent !== 'Computing what this would have cost …'")
    made = "document.querySelectorAll('main img, main script, main iframe, main b, main i, svg [onload], [onerror], [onclick]').length"
    assert await page.value(made) == 0
    assert await page.value("document.title") in [f"{title} – edge agent" for title in ("Budget", "Outbox")]
    assert {urlsplit(one).netloc for one in page.requested if one.startswith("http")} == {urlsplit(url).netloc}


async def test_the_browser_itself_refuses_markup_from_text(tab: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(tab, stage.show(agent))
    tried = "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'taken'; } catch (error) { return error.name; } })()"
    assert await tab.value(tried) == "TypeError"
    assert await tab.value("fetch('https://example.org').then(() => 'gone', () => 'held')") == "held"


async def test_every_page_file_is_served_and_none_builds_markup_from_text() -> None:
    folder = files("edge.serve").joinpath("page")
    on_disk = {one.name: one.read_text() for one in folder.iterdir()}
    assert {file.name for file, _ in _PAGE.values()} == set(on_disk)
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"):
        sources = {name: text.replace("http://www.w3.org/2000/svg", "") for name, text in on_disk.items()}
        assert [name for name, text in sources.items() if word in text] == [], word


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_view_is_readable_and_labelled_in_light_and_dark(
    page: Page, stage: Stage, agent: PageAgent, theme: str
) -> None:
    await page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    await page.send("Accessibility.enable")
    await arrive(page, stage.show(agent))
    for source in ("local", "cloud", "local-fallback"):
        agent.answers.note = note(source)
        await ask(page, f"from {source}")
    await press_button(page, "Why?")
    await press_button(page, "Bad")
    for view in VIEWS:
        await page.value(f"location.hash = '#{view}'")
        await page.until(f"!document.getElementById('view-{view}').hidden && {FILLED[view]}")
        await page.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        await page.value("document.querySelector('.opener')?.click()")
        assert await checks.unnamed(page) == [], view
        assert await checks.skipped_headings(page) == [], view
        assert await checks.faint(page) == [], view
        assert await checks.small_targets(page) == [], view
        roles = {
            node["role"]["value"] for node in (await page.send("Accessibility.getFullAXTree"))["nodes"] if not node["ignored"]
        }
        assert {"banner", "navigation", "main"} <= roles


@pytest.mark.parametrize(("width", "height"), [(320, 600), (1280, 900)])
async def test_no_view_scrolls_sideways(page: Page, stage: Stage, agent: PageAgent, width: int, height: int) -> None:
    for view in VIEWS:
        await arrive(page, stage.show(agent), view, width, height)
        await page.until(FILLED[view])
        assert not await checks.overflows(page), view
        assert await page.value(f"document.getElementById('{view}-title').checkVisibility()")


async def test_every_control_is_reached_by_tab_in_order_with_a_visible_focus(page: Page, stage: Stage, agent: PageAgent) -> None:
    for view in VIEWS:
        await arrive(page, stage.show(agent), view)
        await page.until(FILLED[view])
        await page.value("document.activeElement.blur()")
        count = await page.value("[...document.querySelectorAll('a, button, input, select, textarea, summary')]"
                                 ".filter((one) => one.checkVisibility() && !one.disabled).length")  # fmt: skip
        seen = []
        for _ in range(min(count, 20)):
            await key(page, "Tab")
            seen.append(await page.value(FOCUS))
        assert [one for one in seen if one[0] or one[2] < 2 or one[3] == "none"] == [], view
        places = [one[1] for one in seen]
        assert places == sorted(set(places)), view


async def test_views_can_be_linked_and_work_with_back(page: Page, stage: Stage, agent: PageAgent) -> None:
    await arrive(page, stage.show(agent))
    await focus(page, "#to-budget")
    await key(page, "Enter")
    await page.until("document.activeElement.id === 'budget-title'")
    assert await page.value("[...document.querySelectorAll('[aria-current=page]')].map((one) => one.id).join()") == "to-budget"
    assert await page.value("document.title") == "Budget – edge agent"
    await page.value("history.back()")
    await page.until("!document.getElementById('view-chat').hidden && document.getElementById('view-budget').hidden")
    await page.value("location.hash = '#__proto__'")
    await page.until("document.querySelector('[aria-current=page]').id === 'to-chat'")
    await focus(page, "#skip")
    await key(page, "Enter")
    assert await focused(page) == "chat-title"
