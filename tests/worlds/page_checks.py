"""Checks for every view of the page: names of controls, order of headings, contrast and overflow, not content."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.worlds.browser import Page

_CONTROLS = frozenset(("button", "link", "textbox", "combobox", "slider", "switch", "checkbox"))
_PLACES = frozenset(("image", "img", "region", "dialog", "table", "navigation", "progressbar", "article", "log", "columnheader"))

_HEADINGS = """[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].filter((node) => node.checkVisibility())
  .map((node) => Number(node.tagName[1]))"""

_CONTRAST = """(() => {
  const parse = (text) => { const m = text.match(/[\\d.]+/g).map(Number); return { rgb: m.slice(0, 3), a: m[3] ?? 1 }; };
  const over = (top, below) => top.rgb.map((value, i) => value * top.a + below[i] * (1 - top.a));
  const light = (rgb) => { const [r, g, b] = rgb.map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (node) => { const chain = []; for (let at = node; at instanceof Element; at = at.parentElement) chain.unshift(at);
    return chain.reduce((below, at) => over(parse(getComputedStyle(at).backgroundColor), below), [255, 255, 255]); };
  const own = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  return [...document.querySelectorAll('body *')]
    .filter((node) => own(node) && node.checkVisibility() && !node.closest('.hidden, :disabled'))
    .map((node) => { const style = getComputedStyle(node), below = ground(node);
      const ink = over(parse(node.namespaceURI.endsWith('svg') ? style.fill : style.color), below);
      const [a, b] = [light(ink), light(below)].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), node.tagName, node.className.baseVal ?? node.className, node.textContent.slice(0, 40)]; })
    .filter(([ratio]) => ratio < 4.5);
})()"""

_TARGETS = """[...document.querySelectorAll('button, a[href], input, select, summary')].filter((node) => node.checkVisibility())
  .map((node) => [node.getBoundingClientRect(), node]).filter(([box]) => box.height < 24 && box.width > 1 && box.y > -50)
  .map(([box, node]) => [node.outerHTML.slice(0, 80), box.height])
  .filter(([html]) => !html.includes('checkbox'))"""


async def unnamed(page: Page) -> list[Any]:
    """Controls, pictures and regions that a screen reader has no name for."""
    tree = (await page.send("Accessibility.getFullAXTree"))["nodes"]
    shown = [node for node in tree if not node.get("ignored") and node.get("role", {}).get("value") in _CONTROLS | _PLACES]
    assert len(shown) > 5
    return [node for node in shown if not node.get("name", {}).get("value")]


async def skipped_headings(page: Page) -> list[int]:
    """Heading levels that go down by more than one; a page begins with its only h1."""
    levels = await page.value(_HEADINGS)
    assert levels[0] == 1 and levels.count(1) == 1
    return [level for before, level in pairwise(levels) if level > before + 1]


async def faint(page: Page) -> list[Any]:
    """Texts with a contrast below 4.5:1."""
    found: list[Any] = await page.value(_CONTRAST)
    return found


async def small_targets(page: Page) -> list[Any]:
    """Controls less than 24 pixels high."""
    found: list[Any] = await page.value(_TARGETS)
    return found


async def overflows(page: Page) -> bool:
    """Whether the page must be scrolled sideways."""
    return bool(await page.value("document.documentElement.scrollWidth > innerWidth"))
