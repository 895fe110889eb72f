"""The C part: ring, mailboxes, seqlocks, futex waits, row copies and action noise. The only importer of the binding.

`lib` holds the functions of `api.h`, each of which releases the GIL; what they promise is said there and in the C
files. Pointers to shared memory are made once, when an object is built: making one costs as much as a call.

Concurrency: all functions may be called from any thread and process, within the rules of `shm/README.md`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from rltrain.native._binding import ffi, lib
except ImportError as error:
    raise ImportError(
        f"The C part of rltrain cannot be loaded ({error}). Build it: pip install . (or pip install -e . for "
        "development) in the folder with pyproject.toml."
    ) from error

__all__ = ["address_of", "ffi", "keep_memory", "lib", "nanoseconds", "pointer", "uniform"]

LONGEST_WAIT_S = 1e9



def address_of(array: np.ndarray) -> int:
    """Return the address of an array's first byte; valid while the array lives."""
    return array.__array_interface__["data"][0]


def pointer(kind: str, address: int) -> Any:
    """Return `address` as a C pointer, for example of kind `rl_ring *`. The caller keeps the memory alive."""
    return ffi.cast(kind, address)


def nanoseconds(timeout_s: float) -> int:
    """Return a time in seconds as the whole nanoseconds that waits take; at most 30 years."""
    return int(min(timeout_s, LONGEST_WAIT_S) * 1e9)


def keep_memory(kept_bytes: int = 1 << 30) -> None:
    """Keep what this process frees for its next tensors; for processes that compute.

    Args:
        kept_bytes: free at the end of the heap, beyond which it goes back; as a rule more than an update takes. What is
            freed below something that stays is kept in any case.

    Handed back and taken again, the pages of large tensors cost more than what is computed on them: PPO's update on
    131,072 rows of CartPole takes 146 ms with, 63 ms without (33,500 page faults; AMD EPYC virtual machine).
    """
    lib.rl_keep_memory(kept_bytes)


def uniform(
    seed: int, env_indices: np.ndarray, env_steps: np.ndarray, num_components: int, out: np.ndarray
) -> None:
    """Fill `out` with uniforms in the open interval (0, 1) that depend on nothing but the arguments of their row.

    A pure function of (seed, env index, env step, component): a row's noise does not depend on its batch.

    Args:
        seed: in [0, 2**64).
        env_indices: int64 [B], index of each row's env in the whole run, in [0, 2**32).
        env_steps: int64 [B], each row's step since the start of the run, >= 0.
        num_components: A, uniforms per row; 0 leaves `out` as it is.
        out: float32 [B, A], C-contiguous.

    Raises:
        ValueError: shapes, dtypes or values outside the ranges above.

    Concurrency: no shared state; releases the GIL. About 10 ns for each four components.
    """
    if num_components == 0:
        return
    rows = len(env_indices)
    if out.shape != (rows, num_components) or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous float32 [{rows}, {num_components}], not {out.dtype} {out.shape}")
    indices = np.ascontiguousarray(env_indices, np.int64)
    steps = np.ascontiguousarray(env_steps, np.int64)
    if steps.shape != (rows,) or indices.shape != (rows,):
        raise ValueError(f"env_indices {indices.shape} and env_steps {steps.shape} must both be [B]")
    rc = lib.rl_uniform(
        seed, ffi.from_buffer("int64_t[]", indices), ffi.from_buffer("int64_t[]", steps), rows, num_components,
        ffi.from_buffer("float[]", out, require_writable=True),
    )
    if rc < 0:
        raise ValueError("env_indices must be in [0, 2**32) and env_steps must be >= 0")
