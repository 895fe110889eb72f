"""Where a process is, or where it crashed, read from what `faulthandler` wrote about it.

Owns: nothing. Called by the heartbeats and by the check of an environment.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import rltrain

_CALL = re.compile(r'File "(.+)", line (\d+) in (.+)')
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")
_PLUMBING = re.compile(r"/(?:site|dist)-packages/(?:numpy|gymnasium(?!/envs/))")
_PACKAGE = str(Path(rltrain.__file__).parent) + "/"
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + "/"


def current_calls(lines: list[str]) -> list[str]:
    """Return the calls of the thread that got the signal, innermost first; those of the last stack in `lines`."""
    starts = [i for i, line in enumerate(lines) if line.startswith("Current thread")]
    calls = []
    for line in lines[starts[-1] + 1 :] if starts else []:
        if not line.startswith("  "):
            break
        calls.append(line.strip())
    return calls


def users_place(lines: list[str]) -> str | None:
    """Return the innermost place in the user's own code, as `file:line in function`.

    Without one, as in an env that was installed, the innermost in a package that makes envs; without that the
    innermost of all, or None where there is no stack.
    """
    found = [match.groups() for call in current_calls(lines) if (match := _CALL.fullmatch(call))]
    places = sorted(found, key=lambda place: _strangeness(place[0]))  # stable: the innermost of each comes first
    return f"{places[0][0]}:{places[0][1]} in {places[0][2]}" if places else None


def _strangeness(file: str) -> int:
    if _INSTALLED.search(file):
        return 2 if _PLUMBING.search(file) else 1
    return 2 if file.startswith(("<", _PACKAGE, _STANDARD_LIBRARY)) else 0
