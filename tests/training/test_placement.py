"""Who goes to which machine: counted by hand."""

from __future__ import annotations

import pytest

from training.placement import Machine, Placement

HEAD, BIG, SMALL = Machine("head", 3.0), Machine("big", 4.0), Machine("small", 1.0)


def place(placement: Placement, machines: list[Machine], number: int) -> list[str | None]:
    """Put so many, one after the other; each is called after how many were put before."""
    out = []
    for _ in range(number):
        out.append(placement.choose(machines))
        placement.put(len(placement._where), out[-1])
    return out


def test_each_goes_where_the_smallest_share_is_in_use_and_the_learner_counts():
    # Shares with the next one, learner counted: head 2/3, big 1/4, small 1/1.
    found = place(Placement("head"), [HEAD, BIG, SMALL], 8)
    # big 1/4, 2/4; then head 2/3 is less than big 3/4; big 3/4; at 1 all are equal, and those
    # without the learner come first; the last CPU is the one that the learner uses too.
    assert found == ["big", "big", "head", "big", "big", "small", "head", "head"]


def test_two_actors_are_on_two_machines_though_one_could_hold_both():
    for machines in ([HEAD, SMALL], [SMALL, HEAD]):
        assert place(Placement("head"), machines, 2) == ["head", "small"]


def test_on_one_machine_everybody_is_there_and_who_finds_no_cpu_waits_for_any():
    assert place(Placement("head"), [HEAD], 5) == ["head", "head", "head", None, None]


@pytest.mark.parametrize("machines", [[], [Machine("head", 0.0)]], ids=["none", "no-cpus"])
def test_a_machine_without_cpus_takes_nobody(machines):
    assert Placement("head").choose(machines) is None


def test_who_leaves_makes_room_and_who_was_lost_with_its_machine_is_placed_among_the_living():
    placement = Placement("head")
    assert place(placement, [HEAD, SMALL], 2) == ["head", "small"]
    placement.remove(1, came=True)
    assert placement.choose([HEAD]) == "head"
    assert placement.choose([HEAD, SMALL]) == "small"
    placement.remove("a stranger", came=True)
    placement.remove(0, came=True)
    assert placement.choose([HEAD, BIG]) == "big"


def test_a_cpu_that_others_use_is_not_tried_twice():
    placement = Placement("head")
    placement.put("actor", placement.choose([SMALL, HEAD]))
    placement.put("second", "small")
    placement.remove("second", came=False)  # the engine gave it no CPU there
    assert placement.choose([SMALL, HEAD]) == "head"
