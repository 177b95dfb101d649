"""The probe against real HTTP servers: those that answer, load, refuse, lie, break off or say nothing."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from specd.engines.openai_probe import Health, NoToken, ServerProbe, wait_listening
from specd.hosts.host import Route
from tests.contract.rehearsal import Engine as RehearsalProgram
from tests.contract.rehearsal import free_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(routes: dict[str, Handler], port: int = 0, socket: str = "") -> AsyncIterator[Route]:
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_route("*", path, handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    try:
        if socket:
            await web.UnixSite(runner, socket).start()
            yield Route("http://localhost", unix_socket=socket, kind="tunnel")
        else:
            site = web.TCPSite(runner, "127.0.0.1", port or free_port())
            await site.start()
            yield Route(site.name)
    finally:
        await runner.cleanup()


def events(*chunks: object, then: str = "end") -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            text = chunk if isinstance(chunk, str) else f"data: {json.dumps(chunk)}\n\n"
            await response.write(text.encode())
        if then == "hang":
            await asyncio.sleep(60)
        if then == "cut":
            assert request.transport is not None
            request.transport.abort()
        return response

    return handler


def answering(status: int, body: object) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return (
            web.json_response(body, status=status)
            if not isinstance(body, str)
            else web.Response(status=status, text=body)
        )

    return handler


def delta(**fields: object) -> dict[str, object]:
    return {"model": "m", "choices": [{"index": 0, "delta": fields}]}


ROLE = delta(role="assistant", content="")


@pytest.mark.parametrize(
    ("chunks", "channel", "text"),
    [
        ([ROLE, delta(content="One")], "content", "One"),
        ([ROLE, delta(content=None, reasoning="Let me")], "reasoning", "Let me"),
        ([ROLE, delta(reasoning_content="Hmm")], "reasoning_content", "Hmm"),
        ([ROLE, delta(tool_calls=[{"id": 1}])], "tool_calls", '[{"id": 1}]'),
        ([": keep-alive\n\n", "event: x\n", "data: not json\n\n", ROLE, delta(content="a")], "content", "a"),
        ([{"model": "m", "choices": [{"message": {"content": "whole"}}]}], "content", "whole"),
        (['{"model": "m", "choices": [{"message": {"content": "plain json"}}]}'], "content", "plain json"),
    ],
)
async def test_a_token_of_any_channel_counts(chunks: list[object], channel: str, text: str) -> None:
    async with serving({"/v1/chat/completions": events(*chunks)}) as route, ServerProbe(route, model="m") as probe:
        token = await probe.first_token(5)
    assert (token.channel, token.text, token.model) == (channel, text, "m")
    assert 0 < token.seconds < 5


@pytest.mark.parametrize(
    ("handler", "kind", "words"),
    [
        (
            events(ROLE, {"error": {"message": "EngineCore died", "code": 500}}, "data: [DONE]\n\n"),
            "no-token",
            "EngineCore",
        ),
        (events(ROLE, {"error": {"message": "logprobs not supported", "code": 400}}), "refused", "logprobs"),
        (events(ROLE, {"error": "plain words"}), "no-token", "plain words"),
        (
            answering(400, {"error": {"message": "min_p is not compatible\x1b[2J"}}),
            "refused",
            "min_p is not compatible",
        ),
        (answering(401, {"error": "Unauthorized"}), "refused", "Unauthorized"),
        (answering(404, {"error": {"message": "The model `m` does not exist."}}), "model-missing", "does not exist"),
        (answering(500, "oops"), "refused", "oops"),
    ],
)
async def test_refusals_carry_the_servers_own_words(handler: Handler, kind: str, words: str) -> None:
    async with serving({"/v1/chat/completions": handler}) as route, ServerProbe(route, model="m") as probe:
        with pytest.raises(NoToken) as caught:
            await probe.first_token(5)
    assert (caught.value.kind, words in caught.value.words, words in str(caught.value)) == (kind, True, True)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("then", ["hang", "cut", "end"])
async def test_headers_and_a_role_are_no_token(then: str) -> None:
    async with (
        serving({"/v1/chat/completions": events(ROLE, then=then)}) as route,
        ServerProbe(route, model="m") as probe,
    ):
        started = time.monotonic()
        with pytest.raises(NoToken) as caught:
            await probe.first_token(0.4)
        assert time.monotonic() - started < 2
    assert caught.value.kind == "no-token"


@pytest.mark.parametrize(
    "chat",
    [
        answering(404, "404: Not Found"),
        answering(400, {"error": {"message": "As of transformers v4.44, no default chat template is provided"}}),
        events(ROLE),
    ],
)
async def test_plain_completions_where_there_is_no_chat(chat: Handler) -> None:
    routes = {
        "/v1/chat/completions": chat,
        "/v1/completions": events(
            {"model": "m", "choices": [{"text": ""}]}, {"model": "m", "choices": [{"text": "2"}]}
        ),
    }
    async with serving(routes) as route, ServerProbe(route, model="m") as probe:
        token = await probe.first_token(5)
    assert (token.channel, token.text) == ("text", "2")


async def test_three_states_of_loading() -> None:
    port = free_port()
    body = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
    async with ServerProbe(Route(f"http://127.0.0.1:{port}"), model="m") as probe:
        assert await probe.health() is Health.NOT_LISTENING
        async with serving({"/health": answering(503, body)}, port):
            assert await probe.health() is Health.LOADING
        async with serving({"/health": answering(200, "")}, port):
            assert await probe.health() is Health.UP
        async with serving({"/health": answering(503, "")}, port):
            assert await probe.health() is Health.SICK
        assert await probe.health() is Health.NOT_LISTENING


async def test_a_dead_engine_is_sick_only_after_it_was_up() -> None:
    async with serving({"/health": answering(500, "")}) as route, ServerProbe(route, model="m") as probe:
        assert await probe.health() is Health.LOADING


async def test_a_health_that_hangs() -> None:
    async with serving({"/health": events(then="hang")}) as route, ServerProbe(route, model="m") as probe:
        assert await probe.health(0.2) is Health.LOADING


async def test_models_version_metrics_and_load() -> None:
    running = 'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_running{engine="1"} 1.0\n'
    page = f"{running}vllm:num_requests_waiting 4\n"
    routes = {
        "/v1/models": answering(200, {"data": [{"id": "kimi"}, {"id": "kimi-2"}, {"no": 1}]}),
        "/version": answering(200, {"version": "0.33.0"}),
        "/metrics": answering(200, page),
    }
    async with serving(routes) as route, ServerProbe(route, model="kimi") as probe:
        assert await probe.models() == ("kimi", "kimi-2")
        assert await probe.version() == "0.33.0"
        assert await probe.metrics() == page
        assert await probe.running() == 7
    async with serving({"/v1/models": answering(200, {"data": None})}) as route, ServerProbe(route, model="m") as probe:
        assert (await probe.models(), await probe.version(), await probe.metrics()) == ((), "", None)
        assert await probe.running() is None


async def test_the_key_is_sent() -> None:
    async def guarded(request: web.Request) -> web.StreamResponse:
        ok = request.headers.get("Authorization") == "Bearer s3cret"
        return await events(delta(content="x"))(request) if ok else web.json_response({"error": "no"}, status=401)

    async with serving({"/v1/chat/completions": guarded}) as route:
        async with ServerProbe(route, model="m", api_key="s3cret") as probe:
            assert (await probe.first_token(5)).text == "x"
        async with ServerProbe(route, model="m") as probe:
            with pytest.raises(NoToken, match="401"):
                await probe.first_token(5)


async def test_through_a_unix_socket(tmp_path: Path) -> None:
    socket = str(tmp_path / "tunnel")
    routes = {"/v1/chat/completions": events(delta(content="x")), "/health": answering(200, "")}
    async with serving(routes, socket=socket) as route, ServerProbe(route, model="m") as probe:
        await asyncio.wait_for(wait_listening(route), 5)
        assert await probe.health() is Health.UP
        assert (await probe.first_token(5)).text == "x"


async def test_a_tunnel_that_takes_and_drops_is_not_listening(tmp_path: Path) -> None:
    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    path = str(tmp_path / "tunnel")
    server = await asyncio.start_unix_server(drop, path)
    route = Route("http://localhost", unix_socket=path, kind="tunnel")
    async with server, ServerProbe(route, model="m") as probe:
        assert await probe.health() is Health.NOT_LISTENING
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait_listening(route), 0.5)


async def test_listening_is_noticed_within_tens_of_milliseconds() -> None:
    port = free_port()
    waiting = asyncio.create_task(wait_listening(Route(f"http://127.0.0.1:{port}"), 0.02))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    async with serving({"/health": answering(200, "")}, port):
        started = time.monotonic()
        await asyncio.wait_for(waiting, 2)
        assert time.monotonic() - started < 0.25


async def test_cancelling_a_probe_leaves_nothing_open() -> None:
    async with serving({"/v1/chat/completions": events(ROLE, then="hang")}) as route:
        probe = ServerProbe(route, model="m")
        async with probe:
            asking = asyncio.create_task(probe.first_token(60))
            await asyncio.sleep(0.1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        with pytest.raises(RuntimeError):
            await probe.models()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("", None), ("no-token", "no-token"), ("error-in-stream:0", "no-token"), ("http-500", "refused")],
)
async def test_the_rehearsal_engine(tmp_path: Path, fault: str, kind: str | None) -> None:
    program = RehearsalProgram(tmp_path, "--reasoning-parser", "x", fault=fault, script={"model_must_exist": False})
    route = Route(f"http://127.0.0.1:{program.port}")
    try:
        async with ServerProbe(route, model="acme/moe") as probe:
            await asyncio.wait_for(wait_listening(route), 20)
            assert await probe.health() is Health.UP
            assert await probe.models() == ("acme/moe",)
            assert await probe.running() == 0
            if kind is None:
                assert (await probe.first_token(5)).text
            else:
                with pytest.raises(NoToken) as caught:
                    await probe.first_token(1)
                assert caught.value.kind == kind
    finally:
        program.end()
