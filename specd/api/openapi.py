"""The OpenAPI description, made from the route table."""

import dataclasses
import types
import typing
from typing import Any

from specd import __version__
from specd.api.routes import ROUTES, STREAM_FIELDS, Field, Route
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
        "problems": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["file", "line", "column", "key", "text"],
                "properties": {
                    "file": {"type": "string"},
                    "line": {"type": "integer", "description": "counts from 1; 0: the file as a whole"},
                    "column": {"type": "integer", "description": "counts from 1; 0: only the line is known"},
                    "key": {"type": "string"},
                    "text": {"type": "string"},
                },
            },
        },
    },
}

_REFUSED = {
    "description": "refused or failed",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of this API."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    paths["/v1/events"] = {
        "get": {
            "summary": "WebSocket: one event a frame (schema Event) after seq `since`, then live. A listener that "
            "can't keep up is closed with 1013 and resumes with the last seq it saw.",
            "parameters": [_parameter(field) for field in STREAM_FIELDS],
            "responses": {"101": {"description": "switched to WebSocket"}, "default": _REFUSED},
        }
    }
    paths["/metrics"] = {"get": {"summary": "The daemon's own metrics.", "responses": {"200": _content("text/plain")}}}
    paths["/openapi.json"] = {"get": {"summary": "This page.", "responses": {"200": _content("application/json")}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "specd", "version": __version__},
        "paths": paths,
        # The unix socket needs no token: its directory is the protection.
        "security": [{}, {"token": []}],
        "components": {
            "schemas": {"Error": _ERROR, "Event": {"oneOf": [_event(kind) for kind in REGISTRY.values()]}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "needed over TCP"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": [_parameter(field) for field in route.fields if field.where != "body"],
        "responses": {
            str(route.status): _content("application/json", {"type": "object"}),
            "default": _REFUSED,
        },
    }
    body = [field for field in route.fields if field.where == "body"]
    if body:
        required = [field.name for field in body if field.default is None]
        schema = {
            "type": "object",
            "required": required,
            "properties": {field.name: _field(field) for field in body},
            "additionalProperties": False,
        }
        content = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": bool(required), "content": content}
    return operation


def _content(kind: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"description": "done", "content": {kind: {"schema": schema or {}}}}


def _field(field: Field) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _JSON_TYPES[field.kind]}
    bounds = {"default": field.default, "minimum": field.least, "maximum": field.most}
    return schema | {key: value for key, value in bounds.items() if value is not None}


def _parameter(field: Field) -> dict[str, Any]:
    required = field.default is None
    return {"name": field.name, "in": field.where, "required": required, "schema": _field(field)}


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
