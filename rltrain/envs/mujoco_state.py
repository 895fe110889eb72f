"""The state of a MuJoCo simulation as arrays, exact enough that stepping on gives the same numbers."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

import numpy as np

DERIVED = (
    "qacc", "qacc_smooth", "act_dot", "sensordata", "energy", "xpos", "xquat", "xmat", "xipos", "ximat", "xanchor",
    "xaxis", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat", "cam_xpos", "cam_xmat", "subtree_com", "cdof",
    "cinert", "cvel", "cacc", "cfrc_int", "cfrc_ext", "subtree_linvel", "subtree_angmom", "ten_length",
    "ten_velocity", "actuator_length", "actuator_velocity", "actuator_force", "qfrc_bias", "qfrc_passive",
    "qfrc_actuator", "qfrc_constraint", "qfrc_smooth", "qfrc_inverse",
)  # fmt: skip
"""Results that envs read. After `mj_step` they belong to the state before its last substep, and rewards and
observations are computed from them, so recomputing them would give other numbers."""


log = logging.getLogger(__name__)


def log_warnings() -> None:
    """Send MuJoCo's warnings to the log, each once; else it writes MUJOCO_LOG.TXT into the working directory.

    Raises:
        ModuleNotFoundError: MuJoCo is not installed.
    """
    seen: set[str] = set()

    def note(message: str) -> None:
        if message not in seen:
            seen.add(message)
            log.warning("MuJoCo: %s", message.strip())

    importlib.import_module("mujoco").set_mju_user_warning(note)


def is_model(value: Any) -> bool:
    """Whether `value` is a MuJoCo model, which stepping does not change."""
    mujoco = sys.modules.get("mujoco")
    return mujoco is not None and isinstance(value, mujoco.MjModel)


def is_data(value: Any) -> bool:
    """Whether `value` is the data of a MuJoCo simulation."""
    mujoco = sys.modules.get("mujoco")
    return mujoco is not None and isinstance(value, mujoco.MjData)


def capture(model: Any, data: Any) -> dict[str, np.ndarray]:
    """Return the state that the next step depends on, and what envs read of the last one."""
    mujoco = sys.modules["mujoco"]
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(model, kind))
    mujoco.mj_getState(model, data, state, kind)
    return {"state": state, **{name: getattr(data, name).copy() for name in DERIVED}}


def restore(model: Any, data: Any, saved: dict[str, np.ndarray]) -> None:
    """Write a captured state back.

    Raises:
        ValueError: it is of another model.
    """
    mujoco = sys.modules["mujoco"]
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    if saved["state"].shape != (mujoco.mj_stateSize(model, kind),):
        raise ValueError("the MuJoCo state is of another model")
    mujoco.mj_setState(model, data, saved["state"], kind)
    mujoco.mj_forward(model, data)  # contacts, which are not saved
    for name in DERIVED:
        getattr(data, name)[...] = saved[name]
