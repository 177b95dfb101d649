"""Every state × every fault of host, network, engine and daemon. The whole product runs with
`python -m tests.chaos --matrix`; here some of it, drawn by $SEED, which is printed."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.expected import CELLS, ENDING, STATES, SURVIVED, Cell
from tests.chaos.matrix import play_cell, play_chain
from tests.rig import EmbeddedSite, RemoteSite, SmallDisk

SEED = int(os.environ.get("SEED", "1"))
# What strikes an embedded site in a way of its own; all else is the daemon's or the engine's.
EMBEDDED = ("power-cut", "daemon-killed", "engine-killed", "orphans-left")
# Its disk is only small where this user may mount one.
CHAINS = random.Random(SEED).sample([f for f in SURVIVED if f != "daemon-disk-full" or os.geteuid() == 0], 3)


def drawn(faults: tuple[str, ...], count: int) -> list[Cell]:
    """Return that many cells, of as many states and faults as they reach."""
    chance = random.Random(SEED)
    # Whether a candidate is kept depends on a verdict, and so on how busy this machine is.
    states, kinds = [state for state in STATES if state != "kept"], list(faults)
    chance.shuffle(states)
    chance.shuffle(kinds)
    return [
        chance.choice([c for c in CELLS if (c.state, c.fault) == (states[n % len(states)], kinds[n % len(kinds)])])
        for n in range(count)
    ]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk | None]:
    """The daemon's state on a disk that can be filled."""
    if os.geteuid() != 0:
        yield None
        return
    small = SmallDisk(tmp_path / "state")
    yield small
    small.close()


@pytest.mark.host
@pytest.mark.parametrize("fault", CHAINS)
async def test_a_fault_in_every_state_that_costs_a_trial_nothing(
    remote_site: RemoteSite, disk: SmallDisk | None, fault: str
) -> None:
    print(f"{fault}: {await play_chain(remote_site, disk, fault)}")


@pytest.mark.host
@pytest.mark.parametrize("cell", drawn(tuple(ENDING), 6), ids=str)
async def test_a_fault_that_a_trial_may_not_survive(
    remote_site: RemoteSite, disk: SmallDisk | None, cell: Cell
) -> None:
    print(f"seed {SEED}: {cell}: {await play_cell(remote_site, disk, cell)}")


@pytest.mark.parametrize("cell", drawn(EMBEDDED, 2), ids=str)
async def test_the_same_under_the_embedded_supervisor(embedded_site: EmbeddedSite, cell: Cell) -> None:
    print(f"seed {SEED}: {cell}: {await play_cell(embedded_site, None, cell)}")
