"""The arena: layout, sealing, attaching, and what happens when it does not fit."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import stat

import numpy as np
import pytest

from rltrain.errors import BootError, ConfigError
from rltrain.shm import arena as arena_module
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.control import Control
from tests.shm.arenas import arena, layout


@pytest.fixture
def shared():
    created = arena()
    yield created
    created.close()


def test_layout_regions_are_aligned_and_do_not_overlap():
    planned = layout(num_slots=40, fragment_length=50)
    end = 0
    for region in sorted(planned.regions.values(), key=lambda r: r.offset):
        assert region.offset >= end
        assert region.offset % (4096 if region.nbytes >= 4096 else 64) == 0
        end = region.offset + region.nbytes
    assert end <= planned.nbytes


def test_layout_through_json_is_equal():
    planned = layout()
    assert ArenaLayout.from_dict(json.loads(json.dumps(planned.to_dict()))) == planned


@pytest.mark.parametrize("options", [{"num_slots": 0}, {"num_actors": 0}, {"weight_bytes": 0}, {"snapshot_bytes": -1}])
def test_layout_without_content_is_refused(options):
    with pytest.raises(ValueError, match="empty arena"):
        layout(**options)


def test_create_memory_is_zero_private_and_sealed(shared):
    assert not shared.view("ring").any()
    assert stat.S_IMODE(os.fstat(shared.fd).st_mode) == 0o600
    for size in (0, shared.layout.nbytes + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(shared.fd, size)


def test_create_all_pages_are_reserved(shared):
    assert os.fstat(shared.fd).st_blocks * 512 >= shared.layout.nbytes


def test_create_large_arena_needs_no_dev_shm():
    before = sorted(os.listdir("/dev/shm"))
    large = arena(weight_bytes=110 << 20)
    assert large.layout.nbytes >= 220 << 20
    assert sorted(os.listdir("/dev/shm")) == before
    large.close()


def test_create_more_than_available_says_what_to_change(monkeypatch):
    monkeypatch.setattr(arena_module, "available_bytes", lambda: 8 << 20)
    with pytest.raises(ConfigError, match=r"needs .* MiB in all, but 8 MiB are available") as error:
        arena(weight_bytes=10 << 20)
    for option in ("pipeline.num_slots = 6", "pipeline.fragment_length", "actors.envs_per_group"):
        assert option in str(error.value)


def test_create_kernel_refuses_pages_says_what_to_change(monkeypatch):
    def refuse(fd, offset, nbytes):  # to make the kernel refuse would take all of the machine's memory
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    num_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=r"pipeline\.num_slots"):
        arena()
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_attach_sees_what_the_creator_writes(shared):
    other = Arena.attach(shared.fd, ArenaLayout.from_dict(shared.layout.to_dict()))
    shared.view("field:reward", "float32")[7] = 1.5
    assert other.view("field:reward", "float32")[7] == 1.5
    other.close()


def test_attach_other_size_is_refused(shared):
    wrong = dataclasses.replace(shared.layout, nbytes=shared.layout.nbytes + 4096)
    with pytest.raises(BootError, match="bytes"):
        Arena.attach(shared.fd, wrong)


def test_attach_other_layout_of_same_size_is_refused(shared):
    wrong = dataclasses.replace(shared.layout, roles=("actor",))
    with pytest.raises(BootError, match="another layout"):
        Arena.attach(shared.fd, wrong)


def test_close_with_living_views_keeps_their_memory():
    closed = arena()
    view, control = closed.view("field:reward", "float32"), Control(closed)
    closed.close()
    closed.close()
    view[0], control.stop = 2.0, True
    assert view[0] == 2.0
    assert control.stop


def num_mappings():
    with open("/proc/self/maps") as maps:
        return maps.read().count("memfd:rltrain")


def test_close_last_user_unmaps_the_memory():
    before = num_mappings()
    closed = arena()
    view = closed.view("field:reward")
    closed.close()
    assert num_mappings() == before + 1
    del view
    assert num_mappings() == before


def test_view_shape_and_dtype_are_as_asked(shared):
    view = shared.view("field:reward", "float32", (6, 6, 3))
    assert view.shape == (6, 6, 3)
    assert view.dtype == np.float32
    assert view.flags.writeable
