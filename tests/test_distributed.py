"""Groups of processes, as far as one process can test them; the rest is in tests/distributed."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch.distributed import HashStore

from bype import distributed
from bype.distributed import Group, GroupError, open_group, place_among_processes, timeout_seconds


def test_one_process_is_a_group_in_which_nothing_is_sent():
    group = Group()
    value = torch.ones(3)
    group.sum_([value])
    assert value.tolist() == [1, 1, 1]
    assert group.broadcast(b"x") == b"x"
    assert group.gather(b"x") == [b"x"]
    group.require_same(b"x", "it")
    group.check_launcher()
    assert group.part(7) == slice(0, 7)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_parts_hold_each_thing_once_and_differ_by_one_at_most(count, size):
    parts = [range(count)[Group(rank, size).part(count)] for rank in range(size)]
    assert [number for part in parts for number in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_an_orphan_stops():
    with pytest.raises(GroupError, match="is gone"):
        Group(0, 2, launcher=os.getpid()).check_launcher()  # nobody starts himself


def test_the_launcher_is_known_even_if_it_is_gone_before_the_libraries_are_loaded():
    text = "import os, bype.system; os.getppid = lambda: 1; print(bype.system.launcher())"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert int(found.stdout) == os.getpid()


@pytest.mark.parametrize("environment", [{"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "x"}, {"WORLD_SIZE": "0"}])
def test_an_environment_that_makes_no_sense_is_refused(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(GroupError, match="torchrun"):
        place_among_processes()


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan"])
def test_a_timeout_is_a_number_of_seconds(monkeypatch, text):
    monkeypatch.setenv("BYPE_TIMEOUT", text)
    with pytest.raises(GroupError, match="BYPE_TIMEOUT"):
        timeout_seconds()


def test_a_meeting_point_that_does_not_answer_gives_one_line(monkeypatch):
    monkeypatch.setattr(distributed, "_joining_seconds", lambda: 1)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(GroupError, match="process 1 of 2 cannot join the others"), open_group():
        pass


def test_processes_agree_on_a_round_whatever_an_earlier_one_left():
    store = HashStore()
    for attempt in range(3):
        found: dict[int, str] = {}

        def join(rank: int, found: dict[int, str] = found) -> None:
            found[rank] = distributed._agree_on_round(store, rank, 3)

        threads = [threading.Thread(target=join, args=(rank,)) for rank in (0, 1, 2)]
        for thread in threads[:: -1 if attempt % 2 else 1]:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(found) == 3
        assert len(set(found.values())) == 1
        store.set("bype/hello/2", "of one that is dead")  # the next round finds it
