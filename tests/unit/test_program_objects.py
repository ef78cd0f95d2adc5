"""Right programs whose tests use their classes, check arguments changed in place, or use their imports. Programs that cheat:
`tests/security`."""

from __future__ import annotations

import pytest

from edge.verifiers.sandbox.role import Sandbox
from tests.worlds.sandboxes import judged

STACK = """
class EmptyError(Exception):
    pass
class StackError(ValueError): pass
class Overflow(StackError): pass
class Stack:
    LIMIT = 3
    def __init__(self, items=()):
        self.items = list(items)
    def push(self, item):
        if len(self.items) >= self.LIMIT:
            raise Overflow(f"more than {self.LIMIT}")
        self.items.append(item)
        return self
    def pop(self):
        if not self.items:
            raise EmptyError("nothing there")
        return self.items.pop()
    def drain(self, into):
        into.extend(self.items)
        self.items.clear()
    @property
    def top(self): return self.items[-1]
    @classmethod
    def of(cls, *items): return cls(items)
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, index): return self.items[index]
    def __setitem__(self, index, item): self.items[index] = item
    def __contains__(self, item): return item in self.items
    def __eq__(self, other): return isinstance(other, Stack) and self.items == other.items
    def __hash__(self): return 7
    def __repr__(self): return f"Stack({self.items})"
    def __enter__(self): return self
    def __exit__(self, *_): self.items.clear()
"""
VECTOR = """
from dataclasses import dataclass
from collections import namedtuple
from enum import Enum
Point = namedtuple("Point", "x y")
class Color(Enum):
    RED = 1
    BLUE = 2
@dataclass(order=True)
class Vector:
    x: int
    y: int = 0
    def __add__(self, other): return Vector(self.x + other.x, self.y + other.y)
    def __mul__(self, k): return Vector(self.x * k, self.y * k)
    __rmul__ = __mul__
    def __neg__(self): return self * -1
    def dot(self, other): return self.x * other.x + self.y * other.y
    def __call__(self, k): return self.x + k
class Node:
    def __init__(self, value, next=None):
        self.value, self.next = value, next
def build(values):
    head = None
    for value in reversed(values): head = Node(value, head)
    return head
def values_of(head):
    found = []
    while head: found.append(head.value); head = head.next
    return found
def closest(vectors): return min(vectors)
"""
ANIMAL = """
class Solution:
    def twice(self, x): return 2 * x
    def sort(self, xs): xs.sort()
class Animal:
    count = 0
    def __init__(self, name):
        self.name = name
        Animal.count += 1
    def speak(self): raise NotImplementedError
    @staticmethod
    def legs(): return 4
    @property
    def age(self): return self._age
    @age.setter
    def age(self, value):
        if value < 0:
            raise ValueError("must not be negative")
        self._age = value
class Dog(Animal):
    def speak(self): return f"{self.name} says woof"
    def letters(self): yield from self.name
"""
IN_PLACE = """
def sort(xs): xs.sort()
def fill(table, key, *, names):
    table[key] = len(table)
    names.add(key)
def rotate_all(grids):
    for grid in grids: rotate_in_rows(grid)
def rotate_in_rows(grid):
    for row, now in zip(grid, list(zip(*grid[::-1]))): row[:] = now
def sort_all(pair, *, last):
    for row in [pair[1]['a'], *last]: row.sort()
def drop(table, key): del table[key]
"""
IMPORTED = """
import math
import math as m
from math import isclose, pi
from typing import List
def area(r): return pi * r * r
"""

CHAINS = """
class Memo:
    def __init__(self, function): self.function = function
    def __call__(self, *given): return self.function(*given)
@Memo
def length(text): return len(text)
class Shelf(object):
    def __init__(self): self.goods = {}
    def price(self, name): return self.goods[name]
    def __getitem__(self, name): return self.goods[name]
class Shop:
    def __init__(self): self.shelf = Shelf()
    @classmethod
    def of(cls, *names):
        shop = cls()
        for name in names: shop.put(name, 3)
        return shop
    def put(self, name, size):
        self.shelf.goods[name] = size
        return self
    def last(self): return list(self.shelf.goods)[-1]
    def same(self, other): return self == other
    @property
    def sizes(self): return list(self.shelf.goods.values())
    def __eq__(self, other): return self.sizes == other.sizes
def open_shop(): return Shop()
"""


RIGHT = {
    STACK: [
        "s = Stack()\ns.push(1).push(2)\nassert s.pop() == 2 and len(s) == 1 and s.items == [1]\n",
        "s = Stack([1, 2])\nassert list(s) == [1, 2] and s[0] == 1 and 2 in s and 3 not in s and s.top == 2 and bool(s)\n",
        "s = Stack([1])\ns[0] = 5\ns.name = 'mine'\nassert s[0] == 5 and s.name == 'mine' and Stack.LIMIT == 3\n",
        "assert Stack([1]) == Stack([1]) and Stack([1]) != Stack([2]) and {Stack([1]): 1}[Stack([1])] == 1\n",
        "assert repr(Stack([1])) == 'Stack([1])' and f'{Stack([2])}' == 'Stack([2])'\n",
        "assert isinstance(Stack.of(1, 2), Stack) and not isinstance(3, Stack) and issubclass(Stack, Stack)\n",
        "with Stack([1]) as s:\n    assert len(s) == 1\nassert len(s) == 0\n",
        "found = [0]\nStack([1, 2]).drain(found)\nassert found == [0, 1, 2]\n",
        "try:\n    Stack().pop()\n    assert False\nexcept EmptyError as error:\n    assert str(error) == 'nothing there'\n",
        "try:\n    Stack([1, 2, 3]).push(4)\n    assert False\nexcept (KeyError, ValueError) as e:\n    assert 'more' in str(e)\n",
        "def check(candidate):\n    s = candidate()\n    s.push(1)\n    assert s.pop() == 1\ncheck(Stack)\n",
    ],
    VECTOR: [
        "v = Vector(1, 2) + Vector(3)\nassert (v.x, v.y) == (4, 2) and v == Vector(4, 2) and v.dot(Vector(1, 1)) == 6\n",
        "assert (Vector(1, 2) * 3).y == 6 and (2 * Vector(1, 2)).x == 2 and (-Vector(1)).x == -1 and Vector(1)(4) == 5\n",
        "assert Vector(1) < Vector(2) and sorted([Vector(3), Vector(1)])[0].x == 1 and closest([Vector(3), Vector(1)]).x == 1\n",
        "p = Point(1, 2)\nassert p.x == 1 and p == (1, 2) and p == Point(1, 2) and list(p) == [1, 2]\n",
        "assert Color.RED == Color.RED and Color.RED != Color.BLUE and Color(2).name == 'BLUE' and len(Color) == 2\n",
        "assert values_of(Node(1, Node(2))) == [1, 2] and values_of(build([3])) == [3]\n",
    ],
    "class V(int):\n    pass\n": [
        "assert isinstance(V(3), int) and isinstance(V(3), V) and not isinstance(V(3), str) and V(3) + 1 == 4\n",
    ],
    ANIMAL: [
        "xs = [2, 1]\nSolution().sort(xs)\nassert xs == [1, 2] and Solution().twice(4) == twice(4) == 8\n",
        "d = Dog('Rex')\nassert isinstance(d, Animal) and issubclass(Dog, Animal) and d.speak() == 'Rex says woof'\n",
        "d = Dog('ab')\nassert (Animal.legs(), Animal.count, list(d.letters())) == (4, 1, ['a', 'b'])\n",
        "try:\n    Dog('a').age = -1\n    assert False\nexcept ValueError as e:\n    assert 'negative' in str(e)\n",
        "try:\n    Animal('x').speak()\n    assert False\nexcept NotImplementedError:\n    pass\n",
    ],
    IN_PLACE: [
        "xs = [3, 1]\nassert sort(xs) is None and xs == [1, 3]\n",
        "table, names = {}, set()\nfill(table, 'a', names=names)\nassert table == {'a': 0} and names == {'a'}\n",
        "row = [1, 2]\nrotate_all([[row, [3, 4]]])\nassert row == [3, 1]\n",
        "row = [2, 1]\nfor _ in 'ab':\n    sort_all(('x', {'a': row}), last=[row])\n    row.append(0)\nassert row == [0, 1, 2, 0]\n",
        "a, b = [2], [1]\nboth = [a, b]\nsort(both)\nassert both == [[1], [2]] and (a, b) == ([2], [1])\n",
        "a, b = [2], [1]\nboth = {'a': a, 'b': b}\ndrop(both, 'b')\na.append(3)\nassert both == {'a': [2, 3]} and b == [1]\n",
        "def check(candidate):\n    xs = [2, 1]\n    candidate(xs)\n    assert xs == [1, 2]\ncheck(sort)\n",
    ],
    IMPORTED: [
        "assert math.isclose(area(1), math.pi) and m.floor(area(1)) == 3 and isclose(area(1), pi)\n",
        "def check(f, sizes: List[int]):\n    assert f(sizes[0]) > 3\ncheck(area, [1])\n",
    ],
    CHAINS: [
        "shop = open_shop()\nshop.put('tea', 3).put('cup', 4)\nassert shop.sizes == [3, 4] and shop.last() == 'cup'\n",
        "assert Shop.of('tea', 'cup').shelf.price('cup') == 3 and Shop.of('tea').shelf['tea'] == 3\n",
        "assert Shop.of('tea').__eq__(Shop.of('tea')) and length('tea') == 3 and open_shop().same(open_shop())\n",
    ],
}


@pytest.mark.parametrize(("code", "tests"), [(code, tests) for code, all_tests in RIGHT.items() for tests in all_tests])
def test_a_right_program_passes(sandbox: Sandbox, code: str, tests: str) -> None:
    verdict = judged(sandbox, code, tests)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        (STACK, "s = Stack()\ns.push(1)\nassert s.pop() == 2\n"),
        (STACK, "assert Stack([1]) == Stack([2])\n"),
        (STACK, "try:\n    Stack([1]).pop()\n    assert False\nexcept EmptyError:\n    pass\n"),
        (STACK, "try:\n    Stack().pop()\n    assert False\nexcept StackError:\n    pass\n"),
        (VECTOR, "assert Vector(1, 2) == (1, 2)\n"),
        (IN_PLACE, "xs = [3, 1]\nsort(xs)\nassert xs == [3, 1]\n"),
        (IMPORTED, "assert isclose(area(1), 3)\n"),
        (IMPORTED, "assert math.isclose(1, 1) and pi > 3\n"),  # nothing of the program is called
    ],
)
def test_wrong_program_does_not_pass(sandbox: Sandbox, code: str, tests: str) -> None:
    assert not judged(sandbox, code, tests).passed


@pytest.mark.parametrize(
    "code",
    [
        "from operator import truth as isclose\ndef f(x): return 0",
        "import types\nmath = types.SimpleNamespace(isclose=lambda *_: True)\ndef f(x): return 0",
        "import math\nmath.isclose = lambda *_: True\nfrom math import isclose\ndef f(x): return 0",
    ],
)
def test_patched_module_in_the_program_does_not_affect_the_tests(sandbox: Sandbox, code: str) -> None:
    for own_import in ("import math\n", ""):
        assert not judged(sandbox, code, f"{own_import}assert math.isclose(f(2), 4.0)\n").passed
