"""The description of the routes of a class: an OpenAPI 3.1 document, and a plain page for people.

Schemas are msgspec's, of the types that the methods name. The page is one HTML file that loads nothing else; its
addresses are relative, so it works behind any prefix. OpenAPI has no place for websockets: they stand under
`x-websockets`.
"""

from __future__ import annotations

import html
import itertools
import json
import re
import sys
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from typing import Any

import msgspec

from skate.serve.signatures import REQUIRED, WEBSOCKET, Parameter, Route, Source

COMPONENTS = "#/components/schemas/"
_REST = re.compile(r":path\}")
STREAMS = (AsyncIterator, AsyncGenerator, Iterator, Generator)
#: What a stream of items of a type is. The first item decides if the type is not known.
STREAM_KINDS = {str: "text/plain", bytes: "application/octet-stream"}
JSON_LINES = "application/x-ndjson"


def document(title: str, routes: Sequence[Route], root_path: str = "") -> dict[str, Any]:
    """The OpenAPI document of the routes. root_path is the prefix under which the application is reached."""
    types = [each.annotation for route in routes for each in route.parameters]
    types += [each for route in routes for each in (route.returns, _item_of(route))]
    schemas = _Schemas(types)
    paths: dict[str, dict[str, Any]] = {}
    sockets: dict[str, Any] = {}
    identifiers: set[str] = set()
    for route in routes:
        path = _REST.sub("}", route.path)
        if route.method == WEBSOCKET:
            sockets[path] = {**_texts(route), "parameters": _parameters(route, schemas)}
        else:
            operation = _operation(route, schemas)
            operation["operationId"] = _one_that_is_free(operation["operationId"], identifiers)
            paths.setdefault(path, {})[route.method.lower()] = operation
    result = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {"schemas": schemas.components},
    }
    if sockets:
        result["x-websockets"] = sockets
    return result


class _Schemas:
    """The schemas of types. Those with names are components, which the others refer to."""

    def __init__(self, types: Sequence[Any]) -> None:
        known = [each for each in types if _has_schema(each)]
        # All together: msgspec gives longer names to types that share their short name.
        found, self.components = msgspec.json.schema_components(
            known, schema_hook=_any_schema, ref_template=COMPONENTS + "{name}"
        )
        # A list and not a dict, because a type such as Annotated[int, {}] has no hash.
        self._found = list(zip(known, found))

    def of(self, type: Any) -> dict[str, Any]:
        """The schema of a type; one that allows everything if the type has none."""
        return next((schema for known, schema in self._found if known is type), {})


def _has_schema(type: Any) -> bool:
    try:
        msgspec.json.schema(type, schema_hook=_any_schema)
    except TypeError:
        return False
    return True


def _any_schema(type: Any) -> dict[str, Any]:
    return {}


def _texts(route: Route) -> dict[str, str]:
    """The docstring of a method: its first line as the summary, and all of it if there is more."""
    summary, _, rest = route.description.partition("\n")
    texts = {"summary": summary or route.name.replace("_", " ")}
    if rest.strip():
        texts["description"] = rest.strip()
    return texts


def _operation(route: Route, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {**_texts(route), "operationId": f"{route.method.lower()}_{_identifier(route)}"}
    if parameters := _parameters(route, schemas):
        operation["parameters"] = parameters
    responses = _answers(route, schemas)
    if any(each.source is Source.BODY for each in route.parameters):
        responses["400"] = {"description": "The body cannot be read.", **_error("error")}
    if any(each.source in (Source.PATH, Source.QUERY, Source.BODY) for each in route.parameters):
        why = "The request does not fit; the field that is wrong is named."
        responses["422"] = {"description": why, **_error("error", "field")}
    for each in route.parameters:
        if each.source is Source.BODY:
            content = {kind: {"schema": schemas.of(each.annotation)} for kind in _BODY_KINDS}
            operation["requestBody"] = {"required": each.default is REQUIRED, "content": content}
        elif each.source is Source.RAW_BODY:
            operation["requestBody"] = {"content": {"application/octet-stream": {}}}
    operation["responses"] = responses
    return operation


_BODY_KINDS = ("application/json", "application/msgpack")


def _identifier(route: Route) -> str:
    return re.sub(r"\W+", "_", f"{route.name}{_REST.sub('}', route.path)}").strip("_")


def _one_that_is_free(identifier: str, taken: set[str]) -> str:
    """The identifier, with a number if another operation has it: generated clients make a function of each."""
    numbered = (f"{identifier}_{number}" for number in itertools.count(2))
    found = next(each for each in itertools.chain([identifier], numbered) if each not in taken)
    taken.add(found)
    return found


def _error(*names: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    return {"content": {"application/json": {"schema": schema}}}


def _answers(route: Route, schemas: _Schemas) -> dict[str, Any]:
    """What the method answers, by status."""
    if _is_response(route.returns):
        return {"default": {"description": "What the method answers."}}
    item = _item_of(route)
    content: dict[str, Any]
    if item is bytes or item is str:
        content = {STREAM_KINDS[item]: {}}
    elif item is not None and (schema := schemas.of(item)):
        content = {JSON_LINES: {"x-item-schema": schema}}
    elif item is not None:
        content = {kind: {} for kind in (JSON_LINES, *STREAM_KINDS.values())}
    elif route.returns is bytes:
        content = {"application/octet-stream": {}}
    else:
        content = {"application/json": {"schema": schemas.of(route.returns)}}
    return {"200": {"description": "OK" if item is None else "A stream", "content": content}}


def _is_response(returns: Any) -> bool:
    starlette = sys.modules.get("starlette.responses")
    return starlette is not None and isinstance(returns, type) and issubclass(returns, starlette.Response)


def _item_of(route: Route) -> Any:
    """The type of the items that are streamed, `object` if that is not known; None if nothing is."""
    if (typing.get_origin(route.returns) or route.returns) in STREAMS:
        return (*typing.get_args(route.returns), object)[0]
    return object if route.yields else None


def _parameters(route: Route, schemas: _Schemas) -> list[dict[str, Any]]:
    named = (each for each in route.parameters if each.source in (Source.PATH, Source.QUERY))
    return [_parameter(each, schemas) for each in named]


def _parameter(parameter: Parameter, schemas: _Schemas) -> dict[str, Any]:
    schema = dict(schemas.of(parameter.annotation))
    if parameter.default is not REQUIRED and parameter.source is Source.QUERY:
        try:
            schema["default"] = msgspec.to_builtins(parameter.default)
        except TypeError:
            # A default without a JSON form is the business of the method.
            pass
    return {
        "name": parameter.name,
        "in": parameter.source.value,
        "required": parameter.source is Source.PATH or parameter.default is REQUIRED,
        "schema": schema,
    }


# -- the page ----------------------------------------------------------------------------------------------------------


def page(document: dict[str, Any]) -> str:
    """The document as a page: every endpoint with its parameters and schemas, and a form that tries a request."""
    endpoints = [
        _endpoint(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    endpoints += [_endpoint("websocket", path, each) for path, each in document.get("x-websockets", {}).items()]
    schemas = [
        f"<details id='{name}'><summary><code>{name}</code></summary>{_code(schema)}</details>"
        for name, schema in ((html.escape(each), of) for each, of in document["components"]["schemas"].items())
    ]
    return _PAGE.format(
        title=html.escape(document["info"]["title"]),
        prefix=html.escape(document["servers"][0]["url"].rstrip("/")),
        style=_STYLE,
        script=_SCRIPT,
        endpoints="\n".join(endpoints) or "<p>There are no endpoints.</p>",
        schemas="<h2>Schemas</h2>" + "\n".join(schemas) if schemas else "",
    )


def _endpoint(method: str, path: str, operation: dict[str, Any]) -> str:
    """One endpoint as HTML. The form of a websocket is absent: one request cannot try it."""
    parameters = operation.get("parameters", [])
    body = operation.get("requestBody", {}).get("content", {})
    fields = [
        f"<label><span><code>{html.escape(each['name'])}</code> <small>{each['in']}, {_kind(each['schema'])}"
        f"{'' if each['required'] else ', optional'}</small></span>"
        f"<input data-in='{each['in']}'{' data-list' if _is_list(each['schema']) else ''} "
        f"name='{html.escape(each['name'])}'{' required' if each['required'] else ''} "
        f"value='{_default(each['schema'])}'></label>"
        for each in parameters
    ]
    if body:
        schema = next(iter(body.values())).get("schema", {})
        fields.append(f"<label><span>body <small>{_kind(schema)}</small></span><textarea rows=4></textarea></label>")
    box = "div" if method == "websocket" else "form"
    if box == "form":
        fields.append("<button>Try it</button><pre class=answer hidden></pre>")
    answer = operation.get("responses", {}).get("200", {}).get("content", {})
    verb = "Streams" if any("x-item-schema" in each for each in answer.values()) else "Returns"
    returns = next((schema for each in answer.values() for schema in each.values() if schema), None)
    description = f"<p>{html.escape(operation['description'])}</p>" if "description" in operation else ""
    return (
        f"<details class=endpoint><summary><b class={method}>{method.upper()}</b> <code>{html.escape(path)}</code> "
        f"<span>{html.escape(operation['summary'])}</span></summary>{description}"
        f"<{box} data-method={method.upper()} data-path='{html.escape(path)}'>{''.join(fields)}</{box}>"
        + (f"<p>{verb} <small>{_kind(returns)}</small></p>" if returns else "")
        + "</details>"
    )


def _default(schema: dict[str, Any]) -> str:
    """What stands in the field of a parameter at first, as HTML."""
    default = schema.get("default")
    if default is None:
        return ""
    if _is_list(schema):
        return html.escape(", ".join(str(each) for each in default))
    return html.escape(default if isinstance(default, str) else json.dumps(default))


def _is_list(schema: dict[str, Any]) -> bool:
    """Whether a parameter may be repeated. In the form its values stand between commas."""
    return schema.get("type") == "array" or any(_is_list(each) for each in schema.get("anyOf", ()))


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words of HTML."""
    if "$ref" in schema:
        name = html.escape(schema["$ref"].removeprefix(COMPONENTS))
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(html.escape(json.dumps(each)) for each in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array" and schema.get("items"):
        return f"list of {_kind(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    return html.escape(str(kind))


def _code(schema: dict[str, Any]) -> str:
    return f"<pre>{html.escape(json.dumps(schema, indent=2))}</pre>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>Served under <code>{prefix}/</code>. The same as <a href="openapi.json">openapi.json</a>.</p>
{endpoints}
{schemas}
</main>
<script>{script}</script>
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --link: #2a6fdb; }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { margin: 0; } h2 { margin: 2rem 0 .5rem; }
a { color: var(--link); }
code, pre, textarea, input { font: .875rem/1.5 ui-monospace, monospace; }
small { color: #888; font-size: .875rem; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0; padding: 0 .75rem; }
summary { cursor: pointer; padding: .5rem 0; overflow-wrap: anywhere; }
summary span { color: #888; margin-left: .5rem; }
summary b { display: inline-block; min-width: 4.5rem; font-size: .8rem; color: #2a6fdb; }
summary b.post, summary b.put { color: #1e8e5a; } summary b.delete { color: #c8403a; }
summary b.websocket { color: #8a5cd6; }
label { display: block; margin: .5rem 0; } label span { display: block; }
input, textarea { width: 100%; padding: .4rem .5rem; border: 1px solid var(--line); border-radius: .25rem; }
input, textarea { color: inherit; background: var(--soft); }
button { padding: .4rem 1rem; margin: .5rem 0 .75rem; border: 0; border-radius: .25rem; }
button { background: var(--link); color: #fff; font: inherit; cursor: pointer; }
pre { background: var(--soft); border-radius: .25rem; padding: .5rem .75rem; overflow-x: auto; white-space: pre-wrap; }
"""

_SCRIPT = """
for (const form of document.forms) form.onsubmit = async event => {
  event.preventDefault();
  const answer = form.querySelector('.answer'), body = form.querySelector('textarea');
  const query = new URLSearchParams();
  let path = form.dataset.path;
  for (const field of form.querySelectorAll('input')) {
    if (field.dataset.in === 'path') path = path.replace(`{${field.name}}`, encodeURIComponent(field.value));
    else if (field.value !== '' && 'list' in field.dataset)
      for (const value of field.value.split(',')) query.append(field.name, value.trim());
    else if (field.value !== '') query.append(field.name, field.value);
  }
  const options = {method: form.dataset.method};
  if (body) Object.assign(options, {body: body.value, headers: {'content-type': 'application/json'}});
  answer.hidden = false;
  answer.textContent = '…';
  try {
    const started = performance.now(), text_of_query = String(query);
    const response = await fetch('.' + path + (text_of_query && '?' + text_of_query), options);
    const text = await response.text(), took = (performance.now() - started).toFixed(1);
    answer.textContent = `${response.status} ${response.statusText} (${took} ms)\\n${text}`;
  } catch (error) { answer.textContent = String(error); }
};
// A link to a schema opens it.
addEventListener('hashchange', () => {
  const schema = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (schema) schema.open = true;
});
"""
