"""The rule by which one run seed becomes the seed of every env and of every process.

Env `i` of the whole run (`lane * N + i`) gets `env_seed(run_seed, i)`: a 31-bit permutation of `i` keyed by the run
seed. So no two envs of a run share a seed whatever the number of actors, an env's seed does not depend on how many
others there are, and neighbouring run seeds do not overlap as `seed + i` would. 31 bits, because envs hand the seed
on to C code that takes a signed int. Only the first reset of an env is seeded. An actor that takes a dead one's place
goes by another seed, `life_seed`.
"""

from __future__ import annotations

import random

import numpy as np

FIRST_EVAL_ENV_INDEX = 1 << 30
"""Evaluation envs are numbered from here, so that no seed is one of training's."""
_MASK = 2**31 - 1
_PROCESS_DOMAIN, _LIFE_DOMAIN = 0x70726F63, 0x6C696665  # keep what is derived apart from the envs' keys


def env_seed(run_seed: int, env_index: int) -> int:
    """Return the seed of one env, in [0, 2**31); a bijection of `env_index` for each run seed.

    Args:
        run_seed: `run.seed`, >= 0.
        env_index: number of the env in the whole run, in [0, 2**31).
    """
    keys = [int(k) & _MASK for k in np.random.SeedSequence(run_seed).generate_state(3)]
    word = env_index & _MASK
    # Each step (xor, xor with the own upper bits, product with an odd number) can be undone modulo 2**31.
    for key in keys:
        word ^= key
        word ^= word >> 15
        word = (word * 0x2C1B3C6D) & _MASK
        word ^= word >> 13
    return word


def life_seed(run_seed: int, life: int) -> int:
    """Return what stands for the run's seed in an actor that was restarted: `run_seed` itself in its first life, 0.

    With the seeds of its first life it would play the same episodes again, and meet again what has killed it.
    """
    if life == 0:
        return run_seed
    low, high = np.random.SeedSequence((run_seed, _LIFE_DOMAIN, life)).generate_state(2).tolist()
    return int(low | high << 32) >> 1


def seed_process(run_seed: int, actor_index: int) -> None:
    """Seed the global generators of `random` and `numpy`, differently in each actor.

    For envs that draw from them against the Gymnasium contract; holds under fork as well.
    """
    words = np.random.SeedSequence((run_seed, _PROCESS_DOMAIN, actor_index)).generate_state(8)
    random.seed(words.tobytes())
    np.random.seed(words)
