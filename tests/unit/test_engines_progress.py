"""Progress, its evidence, the expected end and the stall clock, without any clock of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.engines.engine import Observation, Stage
from specd.engines.progress import Estimator, Reading
from specd.engines.vllm.log import VllmReader
from tests.corpus import records

GIB = 2**30
HISTORY = {Stage.LAUNCH: 20.0, Stage.CONFIG: 40.0, Stage.WEIGHTS: 600.0, Stage.COMPILE: 300.0, Stage.CAPTURE: 60.0}


def shards(done: int, total: int) -> Observation:
    return Observation(stage=Stage.WEIGHTS, done=done, total=total)


def test_an_exact_count_is_the_best_evidence() -> None:
    estimator = Estimator(0)
    estimator.observe(shards(0, 32), 10)
    estimator.observe(shards(7, 32), 80)
    estimate = estimator.estimate(80)
    assert (estimate.stage, estimate.fraction, estimate.source) == (Stage.WEIGHTS, 7 / 32, "shards 7/32")
    assert estimate.eta_s == pytest.approx(70 * 25 / 7)
    assert not estimate.eta_is_whole


def test_a_silent_load_shows_what_is_read() -> None:
    estimator = Estimator(0)
    estimator.read(Reading(at=1, read_bytes=2 * GIB, rss_bytes=GIB, cpu_s=10, gpu_mib=500))
    estimator.observe(Observation(stage=Stage.WEIGHTS, facts={"checkpoint_bytes": 58 * GIB}), 2)
    fractions = []
    for step in range(1, 42):
        estimator.read(Reading(at=2 + step, read_bytes=(2 + step) * GIB, rss_bytes=GIB, cpu_s=10 + step, gpu_mib=500))
        fractions.append(estimator.estimate(2 + step).fraction)
    estimate = estimator.estimate(43)
    assert estimate.source == "bytes read 41 of 58 GiB"
    assert fractions == sorted(set(fractions))
    assert estimate.fraction == pytest.approx(41 / 58)
    assert estimate.moved_at == 43


def test_weights_from_the_page_cache_show_in_memory_only() -> None:
    estimator = Estimator(0, weights_bytes=10 * GIB)
    estimator.read(Reading(at=0, read_bytes=0, rss_bytes=GIB, gpu_mib=100))
    estimator.observe(Observation(stage=Stage.WEIGHTS), 1)
    estimator.read(Reading(at=5, read_bytes=0, rss_bytes=GIB, gpu_mib=100 + 4 * 1024))
    assert estimator.estimate(5).source == "GPU memory 4.0 of 10 GiB"
    estimator.read(Reading(at=6, read_bytes=0, rss_bytes=6 * GIB, gpu_mib=None))
    assert estimator.estimate(6).source == "memory 5.0 of 10 GiB"


def test_reading_ahead_does_not_outrun_the_count() -> None:
    estimator = Estimator(0, weights_bytes=100 * GIB)
    estimator.read(Reading(at=0, read_bytes=0))
    estimator.observe(shards(2, 10), 1)
    estimator.read(Reading(at=2, read_bytes=25 * GIB))
    assert estimator.estimate(2).fraction == pytest.approx(0.25)
    estimator.read(Reading(at=3, read_bytes=99 * GIB))
    assert estimator.estimate(3).fraction == pytest.approx(0.295)


def test_history_tells_the_rest_of_the_start() -> None:
    estimator = Estimator(0, history=HISTORY)
    assert estimator.estimate(0).eta_s == pytest.approx(sum(HISTORY.values()))
    estimator.observe(Observation(stage=Stage.COMPILE), 700)
    estimate = estimator.estimate(850)
    assert estimate.eta_s == pytest.approx(150 + 60)
    assert estimate.fraction == pytest.approx(0.45)
    assert estimate.source == "history: this stage took 300 s before"
    late = estimator.estimate(3000)
    assert late.fraction is not None
    assert 0.9 < late.fraction < 1
    assert late.eta_s is not None
    assert late.eta_s > 0


def test_own_pace_counts_more_the_further_it_is() -> None:
    estimator = Estimator(0, history=HISTORY)
    estimator.observe(shards(0, 10), 60)
    estimator.observe(shards(9, 10), 60 + 90)
    eta = estimator.estimate(150).eta_s
    assert eta is not None
    # Its own pace says 10 s are left, history 510.
    assert eta == pytest.approx(10 * 0.9 + 510 * 0.1 + 360)


def test_cpu_time_is_a_sign_of_life_where_nothing_else_is() -> None:
    estimator = Estimator(0)
    assert estimator.estimate(1).source == "nothing yet"
    estimator.observe(Observation(stage=Stage.COMPILE), 5)
    estimator.read(Reading(at=5, cpu_s=100))
    estimator.read(Reading(at=65, cpu_s=160))
    estimate = estimator.estimate(65)
    assert (estimate.fraction, estimate.eta_s, estimate.source) == (None, None, "CPU time: 60 s in this stage")


def test_idle_noise_is_not_movement_and_each_kind_of_work_is() -> None:
    estimator = Estimator(0)
    estimator.observe(Observation(stage=Stage.CAPTURE), 10)
    cpu, at = 50.0, 10.0
    for _ in range(100):
        at, cpu = at + 10, cpu + 0.05
        estimator.read(Reading(at=at, cpu_s=cpu, rss_bytes=GIB + int(at), read_bytes=7, gpu_mib=900))
    assert estimator.estimate(at).moved_at == 10
    for changed in ({"cpu_s": cpu + 30}, {"rss_bytes": 2 * GIB}, {"read_bytes": 10**6}, {"gpu_mib": 700}):
        at += 10
        base = {"cpu_s": cpu, "rss_bytes": GIB, "read_bytes": 7, "gpu_mib": 900}
        estimator.read(Reading(at=at, **{**base, **changed}))  # type: ignore[arg-type]
        assert estimator.estimate(at).moved_at == at


def test_slow_steady_work_counts_though_each_step_is_small() -> None:
    estimator = Estimator(0)
    cpu = 0.0
    for second in range(100):
        cpu += 0.05
        estimator.read(Reading(at=float(second), cpu_s=cpu))
    assert estimator.estimate(100).moved_at > 90


def test_a_repeated_bar_is_no_progress() -> None:
    estimator = Estimator(0)
    estimator.observe(shards(3, 4), 10)
    estimator.observe(shards(3, 4), 500)
    assert estimator.estimate(500).moved_at == 10


def test_a_new_invocation_of_counters_is_movement_not_an_error() -> None:
    estimator = Estimator(0, weights_bytes=GIB)
    estimator.read(Reading(at=0, read_bytes=GIB, cpu_s=100))
    estimator.observe(Observation(stage=Stage.WEIGHTS), 1)
    estimator.read(Reading(at=2, read_bytes=0, cpu_s=1))
    assert estimator.estimate(2).moved_at == 2


def test_the_end_is_the_end() -> None:
    estimator = Estimator(0, history=HISTORY)
    estimator.observe(Observation(stage=Stage.SERVER), 90)
    estimator.observe(Observation(stage=Stage.SERVER, finished=True), 100)
    estimate = estimator.estimate(101)
    assert (estimate.fraction, estimate.eta_s) == (1.0, 0.0)
    assert estimator.took_s == {Stage.LAUNCH: 90}


def test_a_real_gpu_start_moves_forward_only() -> None:
    reader, estimator = VllmReader(), Estimator(0)
    seen: list[tuple[int, float]] = []
    for at, text in records("start-gpu-ngram.log"):
        for observation in reader.feed(text):
            estimator.observe(observation, at)
            estimate = estimator.estimate(at)
            seen.append((Stage.ORDER.index(estimate.stage), estimate.fraction or 0.0))
    assert seen == sorted(seen)
    assert (Stage.ORDER.index(Stage.CAPTURE), 1.0) in seen
    assert estimator.took_s[Stage.COMPILE] == pytest.approx(120.293 - 66.457)


_observations = st.builds(
    lambda stage, done, total, finished: Observation(
        stage=stage, done=float(done), total=float(total), finished=finished
    ),
    st.sampled_from(("", *Stage.ORDER)),
    st.integers(0, 50),
    st.integers(1, 50),
    st.booleans(),
)
_readings = st.builds(
    lambda read, rss, cpu, gpu: (read, rss, cpu, gpu),
    st.none() | st.integers(0, 2**40),
    st.none() | st.integers(0, 2**40),
    st.none() | st.floats(0, 1e6),
    st.none() | st.integers(0, 10**6),
)


@given(st.lists(_observations | _readings, max_size=40), st.booleans())
def test_nothing_makes_it_go_back_or_leave_its_range(steps: list[object], has_history: bool) -> None:
    estimator = Estimator(0, history=HISTORY if has_history else None, weights_bytes=2**35)
    last = (0, 0.0)
    for at, step in enumerate(steps, start=1):
        if isinstance(step, Observation):
            estimator.observe(step, at)
        else:
            read, rss, cpu, gpu = step  # type: ignore[misc]
            estimator.read(Reading(at=at, read_bytes=read, rss_bytes=rss, cpu_s=cpu, gpu_mib=gpu))
        estimate = estimator.estimate(at)
        place = (Stage.ORDER.index(estimate.stage), estimate.fraction or 0.0)
        assert place >= last
        assert 0 <= place[1] <= 1
        assert estimate.eta_s is None or estimate.eta_s >= 0
        assert estimate.moved_at <= at
        last = place


def test_memory_beyond_the_weights_says_nothing_of_the_end() -> None:
    estimator = Estimator(0.0, history={Stage.WEIGHTS: 10.0}, weights_bytes=2**29)
    estimator.read(Reading(at=0.0, rss_bytes=2**30))
    estimator.observe(Observation(stage=Stage.WEIGHTS, done=0, total=1), 0.0)
    estimator.read(Reading(at=1.0, rss_bytes=2**31))
    estimate = estimator.estimate(1.0)
    assert estimate.source == "shards 0/1, memory 0.5 of 0.5 GiB"
    assert estimate.eta_s == 9.0


def test_cpu_time_that_is_shown_never_falls() -> None:
    estimator = Estimator(0.0)
    estimator.observe(Observation(stage=Stage.COMPILE), 0.0)
    for at, used in ((1.0, 5.0), (2.0, 30.0), (3.0, 20.0)):
        estimator.read(Reading(at=at, cpu_s=used))
        source = estimator.estimate(at).source
    assert source == "CPU time: 25 s in this stage"


def test_the_share_of_the_whole_start_weighs_stages_by_their_usual_time() -> None:
    estimator = Estimator(
        0.0, history={Stage.LAUNCH: 10.0, Stage.CONFIG: 10.0, Stage.WEIGHTS: 60.0, Stage.SERVER: 20.0}
    )
    assert estimator.estimate(5.0).overall == pytest.approx(0.045)
    estimator.observe(Observation(stage=Stage.WEIGHTS, done=3, total=6), 8.0)
    assert estimator.estimate(9.0).overall == pytest.approx(0.5)
    estimator.observe(Observation(stage=Stage.SERVER, finished=True), 30.0)
    assert estimator.estimate(30.0).overall == 1.0
    assert Estimator(0.0).estimate(1.0).overall is None
