"""A replay that does not fit the memory is refused before anything is reserved (case F03)."""

from __future__ import annotations

import pytest

from rltrain.config.load import load
from rltrain.config.schema import Config
from rltrain.errors import ConfigError
from rltrain.fields import ActionSpec, EnvSpec, FragmentSchema, LeafSpec
from rltrain.supervisor import memory
from rltrain.supervisor.memory import check_fragment_memory, check_replay_memory

GIB = 1 << 30
SPEC = EnvSpec(
    "Pong", (LeafSpec("obs", "box", (4, 84, 84), "uint8"),), ActionSpec("discrete", (), "int64", (6,), (0,))
)


def config(**options: object) -> Config:
    """A run of dqn with these options, dots written as two underscores."""
    given = {"env__id": '"Pong"', "algo__name": '"dqn"', "actors__num_actors": 1, **options}
    return load(None, [f"{name.replace('__', '.')}={value}" for name, value in given.items()]).config


@pytest.fixture(autouse=True)
def four_gibibytes(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 4 * GIB)


def test_million_unstacked_observations_are_told_as_26_gibibytes_and_refused():
    with pytest.raises(ConfigError, match=r"= 1,000,000 .* need 26\.3 GiB .* but 4\.0 GiB are available"):
        check_replay_memory(config(), SPEC, 2)


def test_frames_of_stacks_are_counted_once():
    with pytest.raises(ConfigError, match=r"need 6\.7 GiB of memory, but 4\.0 GiB"):
        check_replay_memory(config(env__frame_stack=4), SPEC, 2)


def test_copy_for_checkpoints_is_counted():
    options = {"env__frame_stack": 4, "replay__capacity": 400_000}
    assert check_replay_memory(config(**options), SPEC, 2) is None
    with pytest.raises(ConfigError, match=r"need 5\.4 GiB of memory \(twice its size, for replay\.save"):
        check_replay_memory(config(**options, replay__save="true"), SPEC, 2)


def test_overcommit_by_option_passes_with_a_warning_that_has_both_numbers():
    text = check_replay_memory(config(replay__allow_overcommit="true"), SPEC, 2)
    assert text is not None
    assert "26.3 GiB" in text
    assert "4.0 GiB" in text
    assert "replay.allow_overcommit is set" in text


def test_replay_in_a_file_needs_memory_for_copies_only():
    assert check_replay_memory(config(replay__in_file="true"), SPEC, 2) is None
    with pytest.raises(ConfigError, match=r"need 26\.3 GiB of memory \(a copy for each checkpoint, replay\.save\)"):
        check_replay_memory(config(replay__in_file="true", replay__save="true"), SPEC, 2)


def test_arena_is_counted_and_what_a_resumed_learner_holds_for_the_replay_is_not():
    options = {"env__frame_stack": 4, "replay__capacity": 500_000}
    assert check_replay_memory(config(**options), SPEC, 2) is None
    with pytest.raises(ConfigError, match=r"but 3\.0 GiB are available"):
        check_replay_memory(config(**options), SPEC, 2, arena_bytes=GIB)
    assert check_replay_memory(config(**options), SPEC, 2, arena_bytes=GIB, held_bytes=GIB) is None


def test_earlier_fragments_of_appo_that_do_not_fit_are_refused():
    options = {"algo__name": '"appo"', "algo__appo__replay_share": 0.5, "pipeline__schedule": '"async"'}
    made = config(**options)
    schema = FragmentSchema.for_env(SPEC, 127, 8)
    with pytest.raises(ConfigError, match=r"algo\.appo\.replay_columns = 4,096 fragments need 13\.8 GiB"):
        check_fragment_memory(made, schema, 0)
    check_fragment_memory(config(**options, algo__appo__replay_columns=512), schema, 0)


def test_replay_that_does_not_fit_its_fragments_is_refused_with_what_it_needs():
    with pytest.raises(ConfigError, match=r"replay.capacity = 300 leaves 19 rows .* Accepted: at least 576"):
        check_replay_memory(config(replay__capacity=300, replay__learning_starts=100, replay__batch_size=32), SPEC, 2)
