"""The rules about names of envs and networks, and which algorithm takes which network."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches

from rltrain.config.schema import Config
from rltrain.registry import MODELS, refusal

BUILT_IN_MODELS = ("auto", "mlp", "nature_cnn", "impala_cnn")
FACTORY = re.compile(r"[^\s:.]+(\.[^\s:.]+)*:[^\s:]+")
"""`module:factory`, or `module:Name-v0` of a module that registers the name."""
Say = Callable[[str], str]
"""Option path -> how a message names it, with its value and place."""


def check_factories(config: Config, say: Say) -> list[str]:
    """Return one message for each `module:factory` that cannot be one."""
    problems = []
    for path, target in (("env.id", config.env.id), ("model.kind", config.model.kind)):
        if ":" in target and not FACTORY.fullmatch(target):
            accepted = "accepted is `module:factory` with a name on both sides, such as `my_package.my_file:make`."
            problems.append(f"{say(path)}: {accepted}")
        elif ":" in target and (reason := refusal(target)) is not None:
            problems.append(f"{say(path)}: {reason}")
    return problems


def check_model(config: Config, say: Say) -> list[str]:
    """Return one message where the kind of network is unknown, or one that the algorithm cannot use."""
    kind = config.model.kind
    names = [*BUILT_IN_MODELS, *MODELS]
    if ":" in kind or kind in names:
        if kind in BUILT_IN_MODELS or config.algo.chosen.policy not in ("squashed", "deterministic"):
            return []
        return [
            f'{say("model.kind")} is a network of your own, which algo.name = "{config.algo.name}" cannot use: it has '
            f"an actor and critics of its own. Accepted: {', '.join(BUILT_IN_MODELS)}; with a network of your "
            'own, algo.name = "ppo" or "appo", or "dqn" for discrete actions.'
        ]
    close = get_close_matches(kind, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return [f"{say('model.kind')}: accepted is {', '.join(names)} or `module:factory`.{hint}"]
