"""Which of the calls in a stack is the user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rltrain
from rltrain.supervisor.stacks import current_calls, users_place

STANDARD = f"{os.path.dirname(os.__file__)}/threading.py"
OURS = f"{Path(rltrain.__file__).parent}/envs/single.py"
SITE = "/venv/lib/python3.11/site-packages"


def stack(*files: str) -> list[str]:
    calls = [f'  File "{file}", line {i} in call{i}' for i, file in enumerate(files, 1)]
    return ["Thread 0x1 (most recent call first):", '  File "/other.py", line 9 in run', "",
            "Current thread 0x2 (most recent call first):", *calls, "", "Extension modules: numpy (total: 1)"]


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ((STANDARD, "/home/me/env.py", "/home/me/main.py", OURS), "/home/me/env.py:2 in call2"),
        ((f"{SITE}/physics/core.py", "/home/me/env.py", OURS), "/home/me/env.py:2 in call2"),
        ((f"{SITE}/numpy/linalg.py", f"{SITE}/maze/env.py", OURS), f"{SITE}/maze/env.py:2 in call2"),
        ((STANDARD, f"{SITE}/gymnasium/envs/toy.py", OURS, "<string>"), f"{SITE}/gymnasium/envs/toy.py:2 in call2"),
        ((STANDARD, OURS), f"{STANDARD}:1 in call1"),
        ((), None),
    ],
)  # fmt: skip
def test_users_place_is_the_innermost_call_of_the_users_code(files, place):
    assert users_place(stack(*files)) == place


def test_current_calls_are_those_of_the_last_stack_without_what_follows_it():
    assert current_calls([*stack("/first.py"), *stack("/second.py")]) == ['File "/second.py", line 1 in call1']
