"""The routes of the server and what each answers."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from .exposition import Metrics
from .faults import Faults
from .generation import Generation, Scheduler
from .logline import STDOUT, Logger, write
from .replies import Manner, Reply
from .requests import ApiError, Ask, read_ask, read_json, read_prompt, read_text, render_chat
from .script import Script
from .settings import Settings
from .speed import mix
from .tokens import Babble, Story, encode, prompt_key, text_of
from .wire import REASONS, Exchange
from .worker import Plan

_Answer = Callable[[Exchange], Awaitable[None]]


class Api:
    """Answers requests; `is_dead` turns /health into 503 once the engine is gone."""

    def __init__(self, plan: Plan, scheduler: Scheduler, metrics: Metrics, log: Logger) -> None:
        self._script: Script = plan.script
        self._faults: Faults = plan.faults
        self._settings: Settings = plan.settings
        self._scheduler = scheduler
        self._metrics = metrics
        self._log = log
        self._open: dict[int, Reply] = {}
        self._count = 0
        self._born = int(time.time())
        self.is_dead = False
        wrong = plan.faults.has("wrong-model-name")
        self._names = [f"{name}-other" if wrong else name for name in plan.settings.served_model_names]
        self._routes: dict[str, tuple[str, _Answer]] = {
            "/health": ("GET", self._health),
            "/ping": ("GET POST", self._health),
            "/version": ("GET", self._version),
            "/load": ("GET", self._load),
            "/metrics": ("GET", self._show_metrics),
            "/v1/models": ("GET", self._models),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._complete),
        }

    def routes(self) -> list[tuple[str, str]]:
        """Return (path, methods) for the start-up lines."""
        return [(path, methods.replace(" ", ", ")) for path, (methods, _) in self._routes.items()]

    async def answer(self, exchange: Exchange) -> None:
        """Answer one request, whatever it is."""
        request = exchange.request
        exchange.on_start = lambda status: self._note(exchange, status)
        methods, route = self._routes.get(request.path, ("", None))
        try:
            if request.path.startswith("/v1") and not self._is_authorised(request.headers.get("authorization", "")):
                exchange.reply(401, b'{"error":"Unauthorized"}')
            elif route is None:
                exchange.reply(404, b'{"detail":"Not Found"}')
            elif request.method not in methods.split() and not (request.method == "HEAD" and "GET" in methods):
                exchange.reply(
                    405, b'{"detail":"Method Not Allowed"}', extra=f"allow: {methods.replace(' ', ', ')}\r\n"
                )
            else:
                await route(exchange)
        except ApiError as error:
            exchange.reply(error.status, json.dumps(error.body()).encode())

    def fail_open(self) -> int:
        """End every open answer with the engine's error; returns how many there were."""
        self._scheduler.abort_all("error")
        open_replies = list(self._open.values())
        for reply in open_replies:
            reply.fail()
        return len(open_replies)

    def _is_authorised(self, header: str) -> bool:
        keys = self._settings.api_keys
        scheme, _, token = header.partition(" ")
        is_known = [hmac.compare_digest(token.strip().encode(), key.encode()) for key in keys]
        return not keys or (scheme.lower() == "bearer" and any(is_known))

    def _note(self, exchange: Exchange, status: int) -> None:
        request = exchange.request
        handler = request.path if request.path in self._routes else "none"
        if handler not in ("/health", "/metrics", "/ping", "/version", "/load"):
            self._metrics.count_http(handler, request.method, status)
        if self._settings.has_access_log and request.path not in self._settings.quiet_endpoints:
            phrase = REASONS.get(status, "Unknown")
            path = ascii(request.path)[1:-1]
            write(STDOUT, f'INFO:     {exchange.peer} - "{request.method} {path} HTTP/1.1" {status} {phrase}\n')

    async def _health(self, exchange: Exchange) -> None:
        exchange.reply(503 if self.is_dead else 200, b"")

    async def _version(self, exchange: Exchange) -> None:
        _reply_json(exchange, {"version": self._script.version})

    async def _load(self, exchange: Exchange) -> None:
        _reply_json(exchange, {"server_load": len(self._open)})

    async def _show_metrics(self, exchange: Exchange) -> None:
        exchange.reply(200, self._metrics.render().encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def _models(self, exchange: Exchange) -> None:
        models: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": self._born,
                "owned_by": "vllm",
                "root": self._settings.model,
                "parent": None,
                "max_model_len": self._settings.max_model_len,
                "permission": [],
            }
            for name in self._names
        ]
        _reply_json(exchange, {"object": "list", "data": models})

    async def _tokenize(self, exchange: Exchange) -> None:
        values = read_json(exchange.request.body)
        ids = encode(render_chat(values)) if "messages" in values else read_prompt(values.get("prompt"))
        texts = [text_of(token) for token in ids] if values.get("return_token_strs") else None
        length = self._settings.max_model_len
        _reply_json(exchange, {"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": texts})

    async def _detokenize(self, exchange: Exchange) -> None:
        _reply_json(exchange, {"prompt": read_text(read_json(exchange.request.body).get("tokens"))})

    async def _chat(self, exchange: Exchange) -> None:
        await self._generate(exchange, is_chat=True)

    async def _complete(self, exchange: Exchange) -> None:
        await self._generate(exchange, is_chat=False)

    async def _generate(self, exchange: Exchange, *, is_chat: bool) -> None:
        arrived = asyncio.get_running_loop().time()
        values = read_json(exchange.request.body)
        if self._faults.has("http-500"):
            raise ApiError(500, "InternalServerError", "The server had an error while processing your request.")
        if self.is_dead:
            raise ApiError(500, "InternalServerError", "EngineCore encountered an issue.")
        length, forces = self._settings.max_model_len, self._settings.forces_usage
        self._check_model(values.get("model"))
        values.setdefault("model", self._names[0])
        ask = read_ask(values, is_chat=is_chat, max_model_len=length, forces_usage=forces)
        await self._run(ask, exchange, arrived)

    def _check_model(self, model: Any) -> None:
        if model in (None, "") or model in self._names:
            return
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(self._names)}."
        place = "serving.py:274"
        self._log.error(place, f"Error with model error=ErrorInfo(message={message!r}, type='NotFoundError', code=404)")
        raise ApiError(404, "NotFoundError", message, "model")

    async def _run(self, ask: Ask, exchange: Exchange, arrived: float) -> None:
        """Have one answer generated and sent; returns when it is over or the client has gone."""
        self._count += 1
        number = self._count
        key = mix(prompt_key(ask.prompt), ask.seed)
        generation = self._plan_generation(ask, key, arrived)
        manner = self._manner(ask, generation.natural_end)
        reply = Reply(
            ask, exchange, manner, f"{key:016x}{number:04x}", lambda: self._scheduler.finish_early(generation)
        )

        generation.sink = reply.take
        self._open[number] = reply
        try:
            reply.begin()
            self._scheduler.submit(generation)
            await exchange.over.wait()
        finally:
            del self._open[number]
            self._scheduler.abort(generation)

    def _plan_generation(self, ask: Ask, key: int, arrived: float) -> Generation:
        low, high = self._script.answer_tokens
        natural = low + mix(key, self._script.seed, 11) % (high - low + 1)
        story = Babble(key, self._faults.text("garbage")) if self._faults.has("garbage") else Story(key)
        end = ask.max_tokens if ask.ignores_eos else max(natural, ask.min_tokens)
        return Generation(ask.prompt, key, story, ask.max_tokens, end, arrived, lambda _ids, _finish: None)

    def _manner(self, ask: Ask, natural_end: int) -> Manner:
        script, faults = self._script, self._faults
        fields = {
            "auto": ("reasoning",) if self._settings.has_reasoning_parser else (),
            "none": (),
            "both": ("reasoning", "reasoning_content"),
        }.get(script.reasoning, (script.reasoning,))
        thinks = bool(fields) and (ask.wants_thinking or script.ignore_thinking_switch)
        speculative = self._settings.speculative
        return Manner(
            fingerprint=f"vllm-{script.version}-{mix(len(str(speculative))) & 0xFFFFFFFF:08x}",
            reasoning_fields=fields,
            reasoning_tokens=round(script.reasoning_share * natural_end) if thinks else 0,
            is_first_at_once=script.tokens_per_chunk == 1,
            tokens_per_chunk=max(script.tokens_per_chunk, self._settings.stream_interval),
            error_after=int(faults.number("error-in-stream", 3)) if faults.has("error-in-stream") else None,
            cut_after=int(faults.number("cut-stream", 3)) if faults.has("cut-stream") else None,
            has_usage=not faults.has("no-usage"),
        )


def _reply_json(exchange: Exchange, value: Any) -> None:
    exchange.reply(200, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))
