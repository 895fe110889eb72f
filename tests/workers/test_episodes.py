"""Episodes that have not ended: their lengths, followed through batches."""

from __future__ import annotations

import numpy as np

from rltrain.workers.episodes import OpenEpisodes, open_steps


def test_open_steps_count_what_came_after_the_last_end():
    """Columns: no end; an end in the middle, a reset after it; two ends; an end in the last row; a reset at first."""
    ended = np.array([[0, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0],
                      [0, 0, 0, 1, 0]], bool)  # fmt: skip
    valid = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 1, 1], [1, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 0, 1, 1],
                      [1, 1, 1, 1, 1]], bool)  # fmt: skip
    has_ended, steps = open_steps(ended, valid)
    assert has_ended.tolist() == [False, True, True, True, False]
    assert steps.tolist() == [6, 3, 1, 0, 5]


def test_open_episodes_grow_until_they_end_whatever_the_order_of_the_lanes():
    episodes = OpenEpisodes(num_lanes=3, num_envs=2)
    none = np.zeros(4, bool)
    episodes.add(np.array([2, 0]), none, np.array([5, 6, 5, 5]))
    episodes.add(np.array([0, 2]), none, np.array([4, 4, 7, 8]))
    assert episodes.longest == 14
    episodes.add(np.array([2]), np.array([False, True]), np.array([1, 3]))
    assert episodes.longest == 13
    episodes.forget(2)
    assert episodes.longest == 9


def test_open_episodes_of_one_lane_twice_in_a_batch_add_up():
    episodes = OpenEpisodes(num_lanes=1, num_envs=1)
    episodes.add(np.array([0, 0]), np.array([True, False]), np.array([2, 7]))
    assert episodes.longest == 9
