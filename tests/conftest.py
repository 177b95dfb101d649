"""Fixtures of things that are real and costly: hosts with systemd and sshd, and an installed vLLM."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rig import EmbeddedSite, RemoteSite, Site
from tests.testhost import HostOptions, TestHost, Unavailable, sweep
from tests.vllm.provision import VllmInstall, provision

ENGINE_TEST_TIMEOUT_S = 1800
"""Covers the installation, which the first test that wants the engine pays for."""

HostFactory = Callable[..., TestHost]


def pytest_configure() -> None:
    """Let programs under test be interrupted also when this run was started in the background, with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take longest, those of the real engine, which get time for its installation."""
    items.sort(key=lambda item: (item.get_closest_marker("engine") is None, "crash" not in item.path.parts))
    for item in items:
        if item.get_closest_marker("engine") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(ENGINE_TEST_TIMEOUT_S))


@contextlib.contextmanager
def _skipping() -> Iterator[None]:
    try:
        yield
    except Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def swept() -> None:
    """Hosts that a killed test run left behind are gone."""
    with _skipping():
        sweep()


@pytest.fixture(scope="session")
def testhost(swept: None) -> Iterator[TestHost]:
    """A booted host that tests share: leave it as found, and give units names of your own."""
    with _skipping():
        host = TestHost.create()
    try:
        host.boot()
        yield host
    finally:
        host.destroy()


@pytest.fixture
def make_host(swept: None) -> Iterator[HostFactory]:
    """Make booted hosts of this test alone: make_host(options=HostOptions(...), behind=other, boot=False)."""
    with contextlib.ExitStack() as hosts:

        def make(options: HostOptions | None = None, *, behind: TestHost | None = None, boot: bool = True) -> TestHost:
            with _skipping():
                host = TestHost.create(options=options, behind=behind)
            hosts.callback(host.destroy)
            if boot:
                host.boot()
            return host

        yield make


@pytest.fixture
def fresh_host(make_host: HostFactory) -> TestHost:
    """A booted host of this test alone, for tests that break it."""
    return make_host()


@pytest.fixture(scope="session")
def vllm_install() -> VllmInstall:
    """The real vLLM and its model, installed on first use."""
    with _skipping():
        return provision()


@pytest.fixture(params=["embedded", pytest.param("systemd", marks=pytest.mark.host)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A service under the rehearsal engine: on the embedded supervisor, and on a systemd host over ssh."""
    if request.param == "embedded":
        embedded = EmbeddedSite(tmp_path)
        try:
            yield embedded
        finally:
            embedded.close()
    else:
        make: HostFactory = request.getfixturevalue("make_host")
        yield RemoteSite(tmp_path, make())


@pytest.fixture
def embedded_site(tmp_path: Path) -> Iterator[EmbeddedSite]:
    """A service on the embedded supervisor."""
    embedded = EmbeddedSite(tmp_path)
    try:
        yield embedded
    finally:
        embedded.close()


@pytest.fixture
def remote_site(make_host: HostFactory, tmp_path: Path) -> RemoteSite:
    """A service on a systemd host over ssh."""
    return RemoteSite(tmp_path, make_host())
