"""The policy on one torch device: two weight versions side by side, static staging, deterministic sampling.

Called by the inference server (rows of many groups) and by actors with local inference (rows of one group).
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rltrain import native
from rltrain.algos.flat_parameters import FlatParameters
from rltrain.fields import EnvSpec
from rltrain.inference.cuda_graphs import CudaForward
from rltrain.models import build_model
from rltrain.shm.weights import WeightBoard

log = logging.getLogger(__name__)
ROW_MULTIPLE = 8
"""Batches are padded to a multiple of this many rows."""

SMALLEST_CALIBRATED_ROWS = 32

_MOST_PLACES = 16
"""Places in the largest batch at which a smaller one is tried."""


class TorchBackend:
    """Runs the policy on batches of rows and samples actions keyed by (seed, env index, env step).

    Weight version v is held by model v % 2, as on the weight board, so that in lockstep schedules a group that is
    one fragment ahead gets its own version while the others finish with theirs.

    Args:
        spec: what the env is.
        model: the `model` section as a dict.
        normalize_obs: whether the model has an observation normaliser.
        seed: the run's seed, for the action noise.
        board: where weights come from.
        max_rows: most rows in one call.
        device: where the policy runs.
        precision: `float32` or `bfloat16`.
        cuda_graphs: whether batches on a CUDA device run as graphs.
        warn: told once, where a model cannot be run as a graph.
    """

    def __init__(self, spec: EnvSpec, model: dict, normalize_obs: bool, seed: int, board: WeightBoard, max_rows: int,
                 device: torch.device | str = "cpu", precision: str = "float32", cuda_graphs: bool = True,
                 warn: Callable[[str], None] = log.warning):
        self.device = torch.device(device)
        self.board = board
        self.seed = seed
        self.models: list[Any] = [build_model(spec, model, normalize_obs).to(self.device).eval() for _ in range(2)]
        self.flats = [FlatParameters(m) for m in self.models]
        self.loaded: list[int | None] = [None, None]
        self.leaves = {leaf.name: leaf for leaf in spec.obs}
        self.autocast = precision == "bfloat16"
        rows = max(SMALLEST_CALIBRATED_ROWS, -(-max_rows // ROW_MULTIPLE) * ROW_MULTIPLE)
        pinned = self.device.type == "cuda"
        self.staged = {
            leaf.name: torch.zeros((rows, *leaf.shape), dtype=_torch_dtype(leaf.dtype), pin_memory=pinned)
            for leaf in spec.obs
        }
        self.obs_rows = {name: tensor.numpy() for name, tensor in self.staged.items()}
        """Where the caller puts observations before `infer`: name -> [rows, ...]."""
        self.noise = torch.zeros((rows, self.models[0].noise_components), pin_memory=pinned)
        self.noise_rows = self.noise.numpy()
        self.env_indices = torch.zeros(rows, dtype=torch.int64, pin_memory=pinned)
        self.asks_for_envs = False
        """Whether a row's distribution depends on its env: some explore more than others."""
        self.sizes = self._calibrate()
        """Rows of the batches that are run; others are padded to the next of these."""
        self.cuda: CudaForward | None = None
        if pinned:
            envs = self.env_indices if self.asks_for_envs else None
            self.cuda = CudaForward(self.device, self.staged, self.noise, envs, self._run_model, cuda_graphs, warn)

    def _calibrate(self) -> list[int]:
        """Find the sizes of batches in which a row's result does not depend on the batch it is in.

        Matrix products of few rows, and on some machines of certain numbers of rows, take other paths in the BLAS and
        differ in the last bit. So it is tried: a row must come out the same as in the largest batch.

        Returns:
            Rows, ascending; the last is the largest batch.
        """
        most = len(self.noise_rows)
        generator = np.random.default_rng(0)
        for parameter in self.models[0].parameters():  # fresh heads are near zero and would hide the difference
            values = generator.normal(size=parameter.shape) / max(1, parameter[0].numel()) ** 0.5
            parameter.data.copy_(torch.from_numpy(values))
        for name, rows in self.obs_rows.items():
            is_float = rows.dtype.kind == "f"
            rows[...] = generator.normal(size=rows.shape) if is_float else self._integers(name, rows.shape, generator)
        self.noise_rows[...] = generator.random(self.noise_rows.shape)
        staged = {name: tensor.to(self.device, copy=True) for name, tensor in self.staged.items()}
        noise = self.noise.to(self.device, copy=True)
        self.asks_for_envs = hasattr(self._distribution(self.models[0], staged), "for_envs")
        reference = self._result(staged, noise)
        good = [most]
        for size in reversed(_sizes_below(most)):
            starts = {*range(0, min(most - size, _MOST_PLACES * size), size), most - size}
            if all(self._is_alike(first, size, staged, noise, reference) for first in starts):
                good.append(size)
        return good[::-1]

    def _is_alike(
        self, first: int, size: int, staged: dict[str, torch.Tensor], noise: torch.Tensor, reference: torch.Tensor
    ) -> bool:
        part = slice(first, first + size)
        obs = {name: tensor[part].clone() for name, tensor in staged.items()}
        return torch.equal(self._result(obs, noise[part].clone()), reference[part])

    @torch.inference_mode()
    def _result(self, obs: dict[str, torch.Tensor], noise: torch.Tensor) -> torch.Tensor:
        """What must not depend on the batch: log-probabilities of samples, or what a distribution says it is."""
        distribution = self._distribution(self.models[0], obs)
        if hasattr(distribution, "invariant"):
            result: torch.Tensor = distribution.invariant()
            return result
        return distribution.log_prob(distribution.sample(noise))

    def _integers(self, name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
        """Random values that the leaf's space allows; for integer Boxes 0 and 1."""
        leaf = self.leaves[name]
        if not leaf.nvec:
            return generator.integers(0, 2, shape)
        start, nvec = (np.array(x, np.int64).reshape(leaf.shape) for x in (leaf.start, leaf.nvec))
        return start + generator.integers(0, nvec, shape)

    def padded(self, num_rows: int) -> int:
        """Return how many rows a batch of `num_rows` is padded to. The padding is rows of earlier batches."""
        return self.sizes[bisect_left(self.sizes, num_rows)]

    def best_version(self, required: int | None) -> int:
        """Return the version to answer with: `required`, or the newest where any will do; -1 before the first.

        Also the newest where `required` has left the board for good: the learner then has the fragment that it was
        for, and what is collected is a dead actor's fragment once more, to be dropped.
        """
        newest = self.board.latest_version
        return newest if required is None or newest > required + 1 else required

    def is_loaded(self, version: int) -> bool:
        """Whether a version is ready for `infer`."""
        return version >= 0 and self.loaded[version % 2] == version

    def load(self, wanted: int) -> int | None:
        """Make a version ready.

        Returns:
            The version, or None when the board no longer or not yet has it.
        """
        if self.is_loaded(wanted):
            return wanted
        if wanted < 0:
            return None
        flat = self.flats[wanted % 2]
        self.loaded[wanted % 2] = None
        if self.cuda is not None:
            self.cuda.wait_weights(wanted % 2)
        got = self.board.read(wanted, flat.host_bytes)
        if got is None:
            return None
        if self.cuda is None:
            flat.load(flat.host_bytes)
        else:
            self.cuda.load(wanted % 2, flat)
        self.loaded[wanted % 2] = got
        return got

    def infer(
        self, version: int, num_rows: int, env_indices: np.ndarray, env_steps: np.ndarray,
        enter: Callable[[str], object] = lambda state: None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose actions for the staged rows.

        Args:
            version: a version that `load` made ready.
            num_rows: rows staged in `obs_rows`.
            env_indices: int64 [num_rows], index of each row's env in the whole run.
            env_steps: int64 [num_rows], each row's step since the start of the run.
            enter: told of the states `h2d`, `forward` and `d2h` as they begin.

        Returns:
            (stored actions [num_rows, ...], behaviour log-probabilities float32 [num_rows]) as numpy arrays, valid
            until the next call.
        """
        native.uniform(self.seed, env_indices, env_steps, self.noise_rows.shape[1], self.noise_rows[:num_rows])
        padded = self.padded(num_rows)
        if self.asks_for_envs:
            self.env_indices[:num_rows] = torch.from_numpy(env_indices)
        if self.cuda is not None:
            return self.cuda.run(version % 2, num_rows, padded, enter)
        enter("forward")
        obs = {name: tensor[:padded] for name, tensor in self.staged.items()}
        envs = self.env_indices[:padded] if self.asks_for_envs else None
        action, logp = self._run_model(version % 2, obs, self.noise[:padded], envs)
        return action[:num_rows].numpy(), logp[:num_rows].numpy()

    @torch.inference_mode()
    def _distribution(self, model: Any, obs: dict[str, torch.Tensor]) -> Any:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            return model.policy(obs)

    @torch.inference_mode()
    def _run_model(
        self, model: int, obs: dict[str, torch.Tensor], noise: torch.Tensor, envs: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample from the policy of model 0 or 1; log-probabilities are float32 whatever a model's own precision."""
        distribution = self._distribution(self.models[model], obs)
        if envs is not None:
            distribution = distribution.for_envs(envs)
        action = distribution.sample(noise)
        return action, distribution.log_prob(action).float()


def _sizes_below(most: int) -> list[int]:
    """Multiples of 8 rows up to 64, then four sizes for each doubling, so that padding adds a quarter at most."""
    sizes = list(range(ROW_MULTIPLE, 65, ROW_MULTIPLE))
    while sizes[-1] < most:
        sizes += [sizes[-1] * quarter // 4 for quarter in (5, 6, 7, 8)]
    return [size for size in sizes if size < most]


def _torch_dtype(name: str) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, name)).dtype
