"""The policy on one torch device: two weight versions side by side, static staging, deterministic sampling.

Called by the inference server (rows of many groups) and by actors with local inference (rows of one group).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rltrain import native
from rltrain.algos.flat_parameters import FlatParameters
from rltrain.fields import EnvSpec
from rltrain.models import build_model
from rltrain.shm.weights import WeightBoard

ROW_MULTIPLE = 8
"""Batches are padded to a multiple of this many rows."""

SMALLEST_CALIBRATED_ROWS = 32


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
    """

    def __init__(self, spec: EnvSpec, model: dict, normalize_obs: bool, seed: int, board: WeightBoard, max_rows: int,
                 device: torch.device | str = "cpu", precision: str = "float32"):
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
        self.min_rows = self._calibrate()
        """Batches are padded to at least this many rows."""

    def _calibrate(self) -> int:
        """Find the smallest batch from which on a row's result does not depend on the batch it is in.

        Matrix products of few rows take other paths in the BLAS and differ in the last bit, from how many rows on
        depends on the machine and the layer. So it is tried: a row must come out the same in every smaller batch
        as in the largest one. Where nothing smaller does, every batch is padded to the largest size.

        Returns:
            Rows.
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
        staged = {name: tensor.clone() for name, tensor in self.staged.items()}
        noise = self.noise.clone()
        _, reference = self._forward(self.models[0], staged, noise)
        sizes = sorted({min(most, size) for size in (8, 16, 24, 32, 48, 64, 128, 256, 512, 1024, most)})
        smallest = most
        for size in reversed(sizes):
            for first in {*range(0, min(most - size, 16 * size), size), most - size}:
                part = slice(first, first + size)
                obs = {name: tensor[part].clone() for name, tensor in staged.items()}
                _, logp = self._forward(self.models[0], obs, noise[part].clone())
                if not torch.equal(logp, reference[part]):
                    return smallest
            smallest = size
        return smallest

    def _integers(self, name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
        """Random values that the leaf's space allows; for integer Boxes 0 and 1."""
        leaf = self.leaves[name]
        if not leaf.nvec:
            return generator.integers(0, 2, shape)
        start, nvec = (np.array(x, np.int64).reshape(leaf.shape) for x in (leaf.start, leaf.nvec))
        return start + generator.integers(0, nvec, shape)

    def padded(self, num_rows: int) -> int:
        """Return how many rows a batch of `num_rows` is padded to. The padding is rows of earlier batches."""
        return max(self.min_rows, -(-num_rows // ROW_MULTIPLE) * ROW_MULTIPLE)

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
        got = self.board.read(wanted, flat.host_bytes)
        if got is None:
            return None
        flat.load(flat.host_bytes)
        self.loaded[wanted % 2] = got
        return got

    def infer(
        self, version: int, num_rows: int, env_indices: np.ndarray, env_steps: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose actions for the staged rows.

        Args:
            version: a version that `load` made ready.
            num_rows: rows staged in `obs_rows`.
            env_indices: int64 [num_rows], index of each row's env in the whole run.
            env_steps: int64 [num_rows], each row's step since the start of the run.

        Returns:
            (stored actions [num_rows, ...], behaviour log-probabilities float32 [num_rows]) as numpy arrays.
        """
        native.uniform(self.seed, env_indices, env_steps, self.noise_rows.shape[1], self.noise_rows[:num_rows])
        padded = self.padded(num_rows)
        obs = {name: tensor[:padded] for name, tensor in self.staged.items()}
        action, logp = self._forward(self.models[version % 2], obs, self.noise[:padded])
        return action[:num_rows].cpu().numpy(), logp[:num_rows].cpu().numpy()

    @torch.inference_mode()
    def _forward(
        self, model: Any, obs: dict[str, torch.Tensor], noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        obs = {name: tensor.to(self.device, non_blocking=True) for name, tensor in obs.items()}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            distribution = model.policy(obs)
        action = distribution.sample(noise.to(self.device, non_blocking=True))
        return action, distribution.log_prob(action)


def _torch_dtype(name: str) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, name)).dtype
