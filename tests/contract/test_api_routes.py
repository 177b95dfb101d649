"""Every route of the real daemon: what it answers, what it refuses, and that its own description of itself is true."""

import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from openapi_spec_validator import validate

from specd.api.routes import ROUTES
from tests.rig import Daemon, EmbeddedSite
from tests.rig.daemon import trial_toml

Answer = tuple[int, Any]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSite]:
    """One service for all tests here."""
    site = EmbeddedSite(tmp_path_factory.mktemp("site"))
    try:
        yield site
    finally:
        site.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(shared_site: EmbeddedSite) -> AsyncIterator[Daemon]:
    """One daemon for all tests here: none of them starts a trial."""
    async with Daemon(shared_site) as running:
        yield running


@asynccontextmanager
async def bare_session(daemon: Daemon) -> AsyncIterator[aiohttp.ClientSession]:
    """Give a session that sends what it is told to."""
    connector = aiohttp.UnixConnector(str(daemon.socket))
    async with aiohttp.ClientSession("http://specd", connector=connector) as session:
        yield session


async def ask(session: aiohttp.ClientSession, method: str, path: str, **request: Any) -> Answer:
    """Send one request; returns the status and the decoded answer."""
    async with session.request(method, path, **request) as answer:
        return answer.status, await answer.json()


def as_path(template: str) -> str:
    """Return a route's path with names that exist nowhere."""
    return template.replace("{trial}", "no-such").replace("{service}", "no-such")


async def test_each_get_route_answers_and_the_lists_start_empty(daemon: Daemon) -> None:
    async with bare_session(daemon) as session:
        status, health = await ask(session, "GET", "/v1/health")
        assert (status, health["state"], health["pid"]) == (200, "ok", daemon.pid)
        assert await ask(session, "GET", "/v1/trials") == (200, {"trials": [], "problem": None})
        status, services = await ask(session, "GET", "/v1/services")
        assert status == 200
        assert services["services"][0]["serving"] == "the baseline llm.service"
        status, events = await ask(session, "GET", "/v1/events.json", params={"limit": "1"})
        assert status == 200
        assert [event["type"] for event in events["events"]] == ["DaemonStarted"]


async def test_check_and_plan_answer_without_touching_anything(daemon: Daemon, shared_site: EmbeddedSite) -> None:
    before = shared_site.fingerprint()
    async with bare_session(daemon) as session:
        status, checked = await ask(session, "POST", "/v1/check")
        assert status == 200
        assert "llm" in json.dumps(checked)
        body = {"file": "t.toml", "text": trial_toml({"max-num-seqs": 8})}
        status, planned = await ask(session, "POST", "/v1/plan", json=body)
        assert status == 200
        assert planned["plans"][0]["ok"] is True
        assert "+ --max-num-seqs" in "\n".join(planned["plans"][0]["argv_diff"])
        assert await ask(session, "GET", "/v1/trials") == (200, {"trials": [], "problem": None})
    assert shared_site.fingerprint() == before
    assert shared_site.traces() == []


@pytest.mark.parametrize("path", [as_path(route.path) for route in ROUTES if "{" in route.path])
async def test_what_does_not_exist_is_named(daemon: Daemon, path: str) -> None:
    route = next(route for route in ROUTES if as_path(route.path) == path)
    body = {"json": {"minutes": 5} if path.endswith("/extend") else {}} if route.method == "POST" else {}
    async with bare_session(daemon) as session:
        status, answer = await ask(session, route.method, path, **body)
    assert status == 404
    assert answer["exit_code"] == 2
    assert "no-such" in answer["message"]


SUBMIT = "/v1/trials"
BAD_REQUESTS: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("unknown field", "POST", SUBMIT, {"json": {"text": "", "texd": 1}}, "texd"),
    ("unknown field where none is taken", "POST", "/v1/check", {"json": {"deep": True}}, "deep"),
    ("missing field", "POST", SUBMIT, {"json": {"file": "t.toml"}}, "text"),
    ("text is a number", "POST", SUBMIT, {"json": {"text": 7}}, "text"),
    ("text is null", "POST", SUBMIT, {"json": {"text": None}}, "text"),
    ("flag is a number", "POST", "/v1/plan", {"json": {"text": "", "rehearsal": 1}}, "rehearsal"),
    ("minutes are a text", "POST", "/v1/trials/x/extend", {"json": {"minutes": "5"}}, "minutes"),
    ("minutes are true", "POST", "/v1/trials/x/extend", {"json": {"minutes": True}}, "minutes"),
    ("minutes are no number", "POST", "/v1/trials/x/extend", {"data": b'{"minutes": NaN}'}, "minutes"),
    ("minutes are negative", "POST", "/v1/trials/x/extend", {"json": {"minutes": -1}}, "minutes"),
    ("minutes are endless", "POST", "/v1/trials/x/extend", {"json": {"minutes": 10**400}}, "minutes"),
    ("half a character", "POST", "/v1/trials/x/cancel", {"data": b'{"by": "\\ud800"}'}, "by"),
    ("no JSON", "POST", SUBMIT, {"data": b"{text"}, "JSON"),
    ("a list", "POST", SUBMIT, {"json": ["text"]}, "object"),
    ("no UTF-8", "POST", SUBMIT, {"data": b'{"text": "\xff"}'}, "JSON"),
    ("too deep", "POST", SUBMIT, {"data": b"[" * 100_000}, "JSON"),
    ("limit is a word", "GET", "/v1/trials", {"params": {"limit": "many"}}, "limit"),
    ("limit is negative", "GET", "/v1/trials", {"params": {"limit": "-1"}}, "limit"),
    ("limit is huge", "GET", "/v1/events.json", {"params": {"limit": "10001"}}, "limit"),
    ("since is no ASCII digit", "GET", "/v1/events", {"params": {"since": "²"}}, "since"),
    ("since is huge", "GET", "/v1/events.json", {"params": {"since": str(2**70)}}, "since"),
    ("unknown parameter", "GET", "/v1/trials", {"params": {"limt": "5"}}, "limt"),
    ("unknown parameter of the stream", "GET", "/v1/events", {"params": {"from": "5"}}, "from"),
]


@pytest.mark.parametrize(("method", "path", "request_", "named"), [b[1:] for b in BAD_REQUESTS], ids=lambda _: "")
async def test_ill_formed_requests_are_refused_by_name(
    daemon: Daemon, method: str, path: str, request_: dict[str, Any], named: str
) -> None:
    async with bare_session(daemon) as session:
        status, answer = await ask(session, method, path, **request_)
    assert status == 400, answer
    assert answer["code"] == "usage"
    assert answer["exit_code"] == 2
    assert named in answer["message"]
    assert "internal" not in daemon.log_tail()


async def test_a_bad_trial_file_comes_back_with_every_problem_and_its_place(daemon: Daemon) -> None:
    text = '[[trial]]\nname = "x"\nservice = "lm"\nflagz = 1\n'
    async with bare_session(daemon) as session:
        status, answer = await ask(session, "POST", SUBMIT, json={"file": "bad.toml", "text": text})
        assert (status, answer["code"], answer["exit_code"]) == (422, "config", 2)
        assert {(p["file"], p["line"]) for p in answer["problems"]} == {("bad.toml", 3), ("bad.toml", 4)}
        status, answer = await ask(session, "POST", SUBMIT, json={"file": "bad.toml", "text": 'a = "b" c\n'})
        assert status == 422
        (problem,) = answer["problems"]
        assert (problem["line"], problem["column"]) == (1, 9)


async def test_other_methods_and_paths_are_refused_as_json(daemon: Daemon) -> None:
    async with bare_session(daemon) as session:
        assert (await ask(session, "DELETE", "/v1/trials"))[0] == 405
        status, answer = await ask(session, "GET", "/v2/trials")
        assert (status, answer["code"], answer["exit_code"]) == (404, "not-found", 2)
        status, answer = await ask(session, "POST", SUBMIT, data=io.BytesIO(b"x" * (5 * 2**20)))
        assert (status, answer["exit_code"]) == (413, 2)


async def test_the_description_is_valid_and_true(daemon: Daemon) -> None:
    async with bare_session(daemon) as session:
        status, document = await ask(session, "GET", "/openapi.json")
        assert status == 200
        validate(document)
        described = {(method.upper(), path) for path, of_path in document["paths"].items() for method in of_path}
        extra = {("GET", path) for path in ("/v1/events", "/metrics", "/openapi.json")}
        assert described == {(route.method, route.path) for route in ROUTES} | extra
        for method, path in sorted(described - extra):
            operation = document["paths"][path][method.lower()]
            schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            for needed in schema.get("required", []):
                body = {name: None for name in schema["required"] if name != needed}
                status, answer = await ask(session, method, as_path(path), json=body)
                assert (status, answer["exit_code"]) == (400, 2)
                assert set(document["components"]["schemas"]["Error"]["required"]) <= set(answer)
            for name, kind in schema.get("properties", {}).items():
                wrong: Any = 5 if kind["type"] == "string" else "five"
                status, answer = await ask(session, method, as_path(path), json={"text": "", "minutes": 1, name: wrong})
                assert status == 400, (path, name, answer)
            for parameter in operation["parameters"]:
                if "maximum" in parameter["schema"]:
                    params = {parameter["name"]: str(parameter["schema"]["maximum"] + 1)}
                    assert (await ask(session, method, as_path(path), params=params))[0] == 400, (path, params)


async def test_metrics_are_prometheus_text(daemon: Daemon) -> None:
    async with bare_session(daemon) as session, session.get("/metrics") as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await page.text()
    families: dict[str, str] = {}
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in families
            families[name] = kind
        elif not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            assert name in families, f"{name} has no TYPE before it"
            assert series not in values, f"{series} comes twice"
            values[series] = float(value)
    assert text.endswith("\n")
    assert set(families.values()) <= {"gauge", "counter"}
    assert values['specd_host_connected{host="site"}'] in (0, 1)
    assert values['specd_trials{state="queued",outcome=""}'] == 0
    assert values["specd_last_event_seq"] >= 1
