"""What a bundle says of its world is shown or refused, whatever stands in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.console import print_grid, print_table
from deploy.contract_check import contract_problems
from real.world import TrainingWorld
from tests.deploy.stand_bundle import stand_contract


def shown(world: TrainingWorld) -> bool:
    """Whether it is a contract's; then every table of it is printed."""
    if contract_problems(replace(stand_contract(), world=world)):
        return False
    print_table("[/a title]", world.rows())
    print_grid("[/a title]", list(world.rows()), [list(world.rows().values())])
    return True


def test_tiles_that_are_no_table_are_a_problem_of_the_contract():
    for tiles in (5, [1, 2], "ab", None):
        assert not shown(TrainingWorld({}, {}, terrain={"tiles": tiles}))
    assert shown(TrainingWorld({}, {}, terrain={}))


def test_names_in_brackets_are_shown_as_they_are(capsys):
    world = TrainingWorld({}, {"[/b]": 1, "[red]": 2}, terrain={"tiles": {"[bold]": {}}})
    assert shown(world)
    told = capsys.readouterr().out
    assert told.count("[/b], [red]") == 2
    assert told.count("terrain of [bold]; servos") == 2
    assert told.count("[/a title]") == 2


WORDS = st.text(st.sampled_from("ab[]/\\ =#"), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.dictionaries(WORDS, VALUES, max_size=3), VALUES, st.booleans())
def test_whatever_a_world_holds_it_is_shown_or_refused(randomize, tiles, told):
    shown(TrainingWorld({}, randomize, terrain={"tiles": tiles} if told else None))
