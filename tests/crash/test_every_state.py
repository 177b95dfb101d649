"""Every state × every fault of host, network, engine and daemon. The whole product runs with `make chaos`; here each
fault strikes and each state is struck, the pairs drawn by $SEED, which is printed."""

import os
import random
from collections.abc import Sequence

import pytest

from tests.chaos.matrix import ENDING, STATES, SURVIVED, play_cell, play_chain
from tests.rig import EmbeddedSite, RemoteSite

# The others of this kind are the daemon's own, and have tests of theirs.
IN_EVERY_STATE = [fault for fault in SURVIVED if fault not in {"database-locked", "daemon-frozen"}]
SEED = int(os.environ.get("SEED", "1"))


def drawn(faults: Sequence[str], at_least: int) -> list[tuple[str, str]]:
    """Return pairs in which every state and every fault occurs."""
    chance = random.Random(SEED)
    states, kinds = list(STATES), list(faults)
    chance.shuffle(states)
    chance.shuffle(kinds)
    count = max(len(states), len(kinds), at_least)
    return [(states[n % len(states)], kinds[n % len(kinds)]) for n in range(count)]


@pytest.mark.host
@pytest.mark.parametrize("fault", IN_EVERY_STATE)
async def test_a_fault_in_every_state_that_costs_a_trial_nothing(remote_site: RemoteSite, fault: str) -> None:
    shown = await play_chain(remote_site, fault)
    print(f"{fault} in {len(STATES)} states: tried 1, held 1, {shown['outcome']}")
    assert len(remote_site.starts()) == 2


@pytest.mark.host
@pytest.mark.parametrize(("state", "fault"), drawn(tuple(ENDING), 9))
async def test_a_fault_that_a_trial_may_not_survive(remote_site: RemoteSite, state: str, fault: str) -> None:
    shown = await play_cell(remote_site, state, fault)
    print(f"seed {SEED}: {fault} in {state}: {shown['state']}, {shown['outcome']}, {shown.get('class')}")


@pytest.mark.parametrize(
    ("state", "fault"), drawn(("engine-killed", "engine-frozen", "power-cut", "daemon-killed"), 9)[:6]
)
async def test_the_same_under_the_embedded_supervisor(embedded_site: EmbeddedSite, state: str, fault: str) -> None:
    shown = await play_cell(embedded_site, state, fault)
    print(f"seed {SEED}: {fault} in {state}: {shown['state']}, {shown['outcome']}, {shown.get('class')}")
