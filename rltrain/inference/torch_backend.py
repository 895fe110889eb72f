"""The policy on one torch device: two weight versions side by side, static staging, deterministic sampling.

Called by the inference server (rows of many groups) and by actors with local inference (rows of one group).
"""

from __future__ import annotations

import numpy as np
import torch

from rltrain import native
from rltrain.algos.flat_parameters import FlatParameters
from rltrain.fields import EnvSpec
from rltrain.models import build_model
from rltrain.shm.weights import WeightBoard

ROW_MULTIPLE = 8
"""Batches are padded to a multiple of this many rows. Matrix products of fewer than 4 rows take another path in
the BLAS and differ in the last bit; with padding a row's result does not depend on the batch it was in
(checked in tests; MKL, x86-64). On CUDA whole buckets are padded instead."""


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
        self.models = [build_model(spec, model, normalize_obs).to(self.device).eval() for _ in range(2)]
        self.flats = [FlatParameters(m) for m in self.models]
        self.loaded: list[int | None] = [None, None]
        self.autocast = precision == "bfloat16"
        rows = -(-max_rows // ROW_MULTIPLE) * ROW_MULTIPLE
        pinned = self.device.type == "cuda"
        self.staged = {
            leaf.name: torch.zeros((rows, *leaf.shape), dtype=_torch_dtype(leaf.dtype), pin_memory=pinned)
            for leaf in spec.obs
        }
        self.obs_rows = {name: tensor.numpy() for name, tensor in self.staged.items()}
        """Where the caller puts observations before `infer`: name -> [rows, ...]."""
        components = self.models[0].noise_components
        self.noise = torch.zeros((rows, components), pin_memory=pinned)
        self.noise_rows = self.noise.numpy()

    def load(self, version: int | None) -> int | None:
        """Make a version ready; None asks for the newest.

        Returns:
            The version that is ready, or None when the board no longer or not yet has it.
        """
        wanted = self.board.latest_version if version is None else version
        if wanted < 0:
            return None
        if self.loaded[wanted % 2] == wanted:
            return wanted
        flat = self.flats[wanted % 2]
        self.loaded[wanted % 2] = None
        got = self.board.read(wanted, flat.host_bytes)
        if got is None:
            return None
        flat.load(flat.host_bytes)
        self.loaded[wanted % 2] = got
        return got

    @torch.inference_mode()
    def infer(self, version: int, num_rows: int, env_indices: np.ndarray, env_steps: np.ndarray):
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
        padded = -(-num_rows // ROW_MULTIPLE) * ROW_MULTIPLE
        obs = {name: tensor[:padded].to(self.device, non_blocking=True) for name, tensor in self.staged.items()}
        noise = self.noise[:padded].to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            distribution = self.models[version % 2].policy(obs)
        action = distribution.sample(noise)
        logp = distribution.log_prob(action)
        return action[:num_rows].cpu().numpy(), logp[:num_rows].cpu().numpy()


def _torch_dtype(name: str) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, name)).dtype
