"""The OpenAPI description, made from the route table."""

import dataclasses
import types
import typing
from typing import Any

from specd import __version__
from specd.api.routes import ROUTES, Field, Route
from states.wire import REGISTRY

__all__ = ["document"]

_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_ERROR = {
    "type": "object",
    "required": ["code", "message", "exit_code"],
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "exit_code": {"type": "integer"},
        "problems": {"type": "array", "items": {"type": "object"}},
    },
}


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of this API."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    since = {"name": "since", "in": "query", "schema": {"type": "integer"}}
    trial = {"name": "trial", "in": "query", "schema": {"type": "string"}}
    paths["/v1/events"] = {
        "get": {
            "summary": "WebSocket: one event a frame (schema Event) after seq `since`, then live.",
            "parameters": [since, trial],
            "responses": {"101": {"description": "switched to WebSocket"}},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "specd", "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR, "Event": {"oneOf": [_event(kind) for kind in REGISTRY.values()]}}},
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": [_parameter(field) for field in route.fields if field.where != "body"],
        "responses": {
            str(route.status): {"description": "done", "content": {"application/json": {"schema": {"type": "object"}}}},
            "default": {
                "description": "refused or failed",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    body = [field for field in route.fields if field.where == "body"]
    if body:
        schema = {
            "type": "object",
            "required": [field.name for field in body if field.default is None],
            "properties": {field.name: {"type": _JSON_TYPES[field.kind]} for field in body},
        }
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation


def _parameter(field: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _JSON_TYPES[field.kind]}
    if field.default is not None:
        schema["default"] = field.default
    return {"name": field.name, "in": field.where, "required": field.where == "path", "schema": schema}


def _event(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    properties = {field.name: _schema(hints[field.name]) for field in dataclasses.fields(kind)}
    properties["type"] = {"const": kind.__name__}
    return {"title": kind.__name__, "description": kind.__doc__, "type": "object", "properties": properties}


def _schema(hint: Any) -> dict[str, Any]:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema(part) for part in typing.get_args(hint)]}
    if hint is type(None):
        return {"type": "null"}
    if origin is tuple:
        return {"type": "array", "items": _schema(typing.get_args(hint)[0])}
    return {"type": _JSON_TYPES.get(hint, "object")}
