"""Counter-based uniforms: an oracle that meets the published vectors of Philox, moments, independence, purity."""

from __future__ import annotations

import numpy as np
import pytest

from rltrain import native

MASK = 0xFFFFFFFF


def philox4x32(counter, key):
    """Ten rounds, as in the paper."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def expected(seed, env, step, num_components):
    row = []
    for block in range(-(-num_components // 4)):
        row += philox4x32((step & MASK, step >> 32, env, block), (seed & MASK, seed >> 32))
    return [((bits >> 9) + 0.5) / 2**23 for bits in row[:num_components]]


def uniform(seed, envs, steps, num_components):
    out = np.full((len(envs), num_components), np.nan, np.float32)
    native.uniform(seed, np.asarray(envs, np.int64), np.asarray(steps, np.int64), num_components, out)
    return out


@pytest.mark.parametrize(("counter", "key", "bits"), [
    ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK, MASK), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
])
def test_oracle_published_vectors_are_met(counter, key, bits):
    assert philox4x32(counter, key) == bits


@pytest.mark.parametrize(("seed", "env", "step"), [
    (0, 0, 0), (1, 2, 3), (2**63 - 1, 2**32 - 1, 2**63 - 1), (2**64 - 1, 0, 2**40 + 5), (2**40, 77, 2**31),
])
@pytest.mark.parametrize("num_components", [1, 4, 5, 11])
def test_uniform_equals_oracle(seed, env, step, num_components):
    np.testing.assert_array_equal(
        uniform(seed, [env], [step], num_components)[0], np.float32(expected(seed, env, step, num_components))
    )


def test_uniform_golden_values_do_not_change():
    assert uniform(0, [0], [0], 4)[0].tolist() == [
        0.39904648065567017, 0.8805201649665833, 0.7357128262519836, 0.6054818034172058,
    ]


def test_uniform_row_does_not_depend_on_its_batch():
    envs, steps = np.arange(100) % 7, np.arange(100) * 13
    together = uniform(5, envs, steps, 6)
    order = np.random.default_rng(0).permutation(100)
    np.testing.assert_array_equal(uniform(5, envs[order], steps[order], 6), together[order])
    for i in (0, 50, 99):
        np.testing.assert_array_equal(uniform(5, envs[i : i + 1], steps[i : i + 1], 6)[0], together[i])


def test_uniform_moments_and_tails_are_those_of_a_uniform():
    sample = uniform(3, np.repeat(np.arange(500), 500), np.tile(np.arange(500), 500), 4).astype(np.float64)
    for moment, value in ((1, 1 / 2), (2, 1 / 3), (3, 1 / 4)):
        assert abs((sample**moment).mean() - value) < 5 * 0.3 / np.sqrt(sample.size)
    counts = np.bincount((sample.ravel() * 256).astype(int), minlength=256)
    chi_squared = ((counts - sample.size / 256) ** 2).sum() / (sample.size / 256)
    assert abs(chi_squared - 255) < 5 * np.sqrt(2 * 255)


def test_uniform_never_reaches_the_ends():
    sample = uniform(9, np.zeros(4_000_000, np.int64), np.arange(4_000_000), 4)
    assert 0 < sample.min() < 1e-6
    assert 1 - 1e-6 < sample.max() < 1


@pytest.mark.parametrize("vary", ["seed", "env", "step", "component"])
def test_uniform_neighbours_are_uncorrelated(vary):
    n = np.arange(200_000)
    if vary == "component":
        first, second = uniform(1, n, n * 0, 2).T
    else:
        first = uniform(1, n, n * 0, 1)[:, 0]
        second = uniform(1 + (vary == "seed"), n + (vary == "env"), n * 0 + (vary == "step"), 1)[:, 0]
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(n))


def test_uniform_no_components_leaves_out_alone():
    assert uniform(0, [1, 2], [3, 4], 0).shape == (2, 0)


@pytest.mark.parametrize(("env", "step"), [(-1, 0), (2**32, 0), (0, -1)])
def test_uniform_values_out_of_range_are_refused(env, step):
    with pytest.raises(ValueError, match="env_indices must be in"):
        uniform(0, [env], [step], 1)


@pytest.mark.parametrize("out", [
    np.zeros((2, 2), np.float32), np.zeros((3, 2)), np.zeros((3, 4), np.float32)[:, ::2], np.zeros(6, np.float32),
])
def test_uniform_out_that_does_not_fit_is_refused(out):
    with pytest.raises(ValueError, match="out must be"):
        native.uniform(0, np.arange(3), np.arange(3), 2, out)
