"""Inputs that broke other servers (test_http_cases.py), those for which a grammar makes a small model say what the test needs. The letters
name the case in ../shared/cases/http."""
import concurrent.futures
import json
import re

import jsonschema
import pytest

from conftest import until
from test_http_cases import CHAT, MESSAGES, TEXT, answer, chat, refused, streamed_text

LETTERS = "ABCDEFGHIJ"  # to SmolLM2: ABC|DEF|GH|I|J
LEVEL = {"type": "object", "properties": {"level": {"type": "integer", "minimum": 0, "maximum": 9}, "why": {"type": "string"}},
         "required": ["level"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "set_level", "description": "set a level", "parameters": LEVEL}}]


def schema_format(schema, **members):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema, **members}}}


def closed(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def forced(text, **members):
    """A request whose answer is {"t": text}."""
    return chat("Repeat.", max_tokens=120, **schema_format(closed(t={"const": text})), **members)


def held(server, schema, content="Give one.", **members):
    """The JSON of an answer that must end well."""
    choice = answer(server, CHAT, chat(content, **{"max_tokens": 80, **schema_format(schema), **members}))["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    return json.loads(choice["message"]["content"])


def same_streamed(server, body):
    """(text, finish reason) of choice 0, the same whole and streamed, and nowhere half a character."""
    whole = answer(server, CHAT, body)["choices"][0]
    text, reasons = streamed_text(server, CHAT, body | {"stream": True})
    assert (text, reasons) == (whole["message"]["content"], [whole["finish_reason"]])
    assert "\ufffd" not in text
    return text, whole["finish_reason"]


# -- A, B: streams and stop strings -----------------------------------------------------------------------------------

@pytest.mark.parametrize("text, stop", [("a🦀b漢字é👩‍👩‍👧", None), ("\U00013000\U0001fabf", None), ("请写一段关于大海的话🦀🦀", ["ZZZ"]), ("é🦀" * 5, ["🦀🦀"])])
@pytest.mark.parametrize("model", ["smollm2", "gemma"])
def test_characters_come_whole(request, model, text, stop):  # A01, A04
    server = request.getfixturevalue(model)
    if model == "smollm2":
        said, reason = same_streamed(server, forced(text, stop=stop))
        assert (json.loads(said)["t"], reason) == (text, "stop")
    else:  # it has no chat template
        body = {"prompt": "Repeat.", "temperature": 0, "max_tokens": 120, "stop": stop, **schema_format({"const": text})}
        said, reasons = streamed_text(server, TEXT, body)
        assert (json.loads(said), reasons) == (text, ["stop"])
        assert answer(server, TEXT, body)["choices"][0]["text"] == said


def test_a_stop_string_after_a_character_of_several_tokens(smollm2):  # A04
    text, reason = same_streamed(smollm2, forced("ab漢🦀cd", stop=["🦀"]))
    assert text.endswith("ab漢") and reason == "stop"


def test_bytes_of_the_entries_rebuild_the_text(smollm2):  # A05
    choice = answer(smollm2, CHAT, forced("🦀é漢", logprobs=True, top_logprobs=2))["choices"][0]
    entries = choice["logprobs"]["content"]
    assert b"".join(bytes(e["bytes"] or []) for e in entries).decode() == choice["message"]["content"]
    assert all(isinstance(t["token"], str) for e in entries for t in [e, *e["top_logprobs"]])


def test_nothing_of_a_stop_string_is_shown_or_all_of_it(smollm2):  # B01, B04, B09, I04
    for stop in ("EFG", ["EFG"]):
        text, reason = same_streamed(smollm2, forced(LETTERS, stop=stop))
        assert text.endswith("ABCD") and reason == "stop"
    value = answer(smollm2, CHAT, forced(LETTERS, stop=["EFG"]))
    assert value["choices"][0]["stop_reason"] == "EFG"
    assert value["usage"]["completion_tokens"] < answer(smollm2, CHAT, forced(LETTERS))["usage"]["completion_tokens"] - 3
    assert same_streamed(smollm2, forced(LETTERS, stop=["EFG"], include_stop_str_in_output=True))[0].endswith("ABCDEFG")
    assert same_streamed(smollm2, forced(LETTERS))[1] == "stop"


def test_several_choices_each_stop(smollm2):  # G08
    events = list(smollm2.stream(CHAT, forced(LETTERS, n=2, stop=["EFG"], stream=True)).events())
    assert events.count("[DONE]") == 1
    choices = [c for e in events[:-1] for c in e["choices"]]
    for index in range(2):
        mine = [c for c in choices if c["index"] == index]
        assert "".join(c["delta"].get("content") or "" for c in mine).endswith("ABCD")
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]


# -- F: what explodes in the compiler ---------------------------------------------------------------------------------

PATTERNS = {"((((": False, "[z-a]": False, "^*$": False, r"(a|a)*b\1": False, "(?<=x)y": False, "(?=x)y": False, "(a": False,
            "a{1000000000}": None, "^(([a-z]{1,500}){1,500}){1,500}$": None, "^(a|a)*$": None, "(.*.*)*x": None}


@pytest.mark.parametrize("schema, right", [
    *(({"type": "string", "pattern": pattern}, right) for pattern, right in PATTERNS.items()),
    ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, False), ({"$ref": "#"}, False), ({"allOf": [{"$ref": "#"}]}, False),
    ({"type": "array", "maxItems": 10**9, "items": {"enum": [f"v{i}" for i in range(50_000)]}}, False),
    ({"type": "array", "minItems": 10**9, "items": {"type": "null"}}, None), ({"type": "string", "maxLength": 10**9}, None),
    ({"type": "integer", "minimum": -10**30, "maximum": 10**30}, None), ({"type": "string", "minLength": 2**63}, None),
], ids=lambda v: str(v)[:60])
def test_what_explodes_is_refused_or_held(smollm2, schema, right):  # F10
    """`right` None: it may be held or refused, by what it costs. Others go on meanwhile."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(smollm2.post, TEXT, {"prompt": "1 2 3", "max_tokens": 32, "ignore_eos": True})
        status, value = smollm2.post(CHAT, chat(max_tokens=4, **schema_format(schema)))
        assert other.result()[0] == 200
    assert status in ((400,) if right is False else (200, 400)), value
    if status == 400:
        assert value["error"]["param"].startswith("response_format.json_schema.schema"), value


# -- I, J: tools ------------------------------------------------------------------------------------------------------

def test_half_a_call_ends_with_length(smollm2):  # I05
    body = chat("Set the level to 5, explain at length.", tools=TOOLS, tool_choice="required", max_tokens=6)
    choice = answer(smollm2, CHAT, body)["choices"][0]
    assert choice["finish_reason"] == "length" and not choice["message"]["content"]
    assert streamed_text(smollm2, CHAT, body | {"stream": True}) == ("", ["length"])


def test_a_streamed_call_can_be_rebuilt(smollm2):  # J01
    body = chat("Set the level to 5.", tools=TOOLS, tool_choice="required", max_tokens=60, stream=True)
    seen = set()
    for _ in range(2):
        events = list(smollm2.stream(CHAT, body).events())
        choices = [c for e in events[:-1] for c in e["choices"]]
        assert not any(c["delta"].get("content") for c in choices)
        pieces = [p for c in choices for p in c["delta"].get("tool_calls") or []]
        first, *later = [p for p in pieces if p["index"] == 0]
        assert first["type"] == "function" and first["function"]["name"] == "set_level" and first["id"] not in seen
        assert all(set(p) == {"index", "function"} and set(p["function"]) == {"arguments"} for p in later)
        seen.add(first["id"])
        reason = [c["finish_reason"] for c in choices if c["finish_reason"]]
        if reason == ["tool_calls"]:
            jsonschema.validate(json.loads("".join(p["function"].get("arguments") or "" for p in [first, *later])), LEVEL)
        else:
            assert reason == ["length"]


def test_calls_of_the_history_are_in_the_prompt(smollm2):  # J04
    def history(arguments, identity, result):
        call = {"id": "c1", "type": "function", "function": {"name": "set_level", "arguments": arguments}}
        return [{"role": "user", "content": "level?"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": identity, "content": result}, {"role": "user", "content": "thanks"}]
    messages = history('{"level": 5}', "c1", "done-7")
    prompt = smollm2.post("/apply-template", {"messages": messages, "tools": TOOLS})[1]["prompt"]
    assert "set_level" in prompt and '"level": 5' in prompt.replace('"level":5', '"level": 5') and "done-7" in prompt
    answer(smollm2, CHAT, {"messages": history('{"level": 5}', "c1", ""), "tools": TOOLS, "max_tokens": 4})
    for broken in (history("{not json", "c1", "r"), history('{"level": 5}', "zzz", [{"type": "text", "text": "r"}]), history("[1]", "c1", "r")):
        assert smollm2.post(CHAT, {"messages": broken, "tools": TOOLS, "max_tokens": 4})[0] in (200, 400)


# -- K: schemas -------------------------------------------------------------------------------------------------------

def test_references_are_followed(smollm2):  # K01
    assert held(smollm2, {**closed(c={"$ref": "#/$defs/C"}), "$defs": {"C": {"enum": ["red", "green"]}}})["c"] in ("red", "green")
    assert held(smollm2, {**closed(c={"$ref": "#/definitions/a~1b%25"}), "definitions": {"a/b%": {"const": 7}}}) == {"c": 7}
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    assert held(smollm2, closed(a={"anyOf": [digit, {"enum": ["x"]}]}, b={"$ref": "#/properties/a/anyOf/1"}))["b"] == "x"
    loop = closed(v={"type": "boolean"}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})
    choice = answer(smollm2, CHAT, chat("Give one.", max_tokens=80, **schema_format(loop)))["choices"][0]
    assert choice["finish_reason"] == "length" or jsonschema.validate(json.loads(choice["message"]["content"]), loop) is None


@pytest.mark.parametrize("reference", ["#/$defs/missing", "https://example.com/s.json", "other.json", "#name", "#/$defs/%zz"])
def test_references_to_nothing_are_refused(smollm2, reference):  # K01
    error = refused(smollm2, CHAT, chat(**schema_format({"$ref": reference})))
    assert error["param"] == "response_format.json_schema.schema.$ref" and reference in error["message"], error


@pytest.mark.parametrize("members, param", [
    ({"grammar": "root ::= ["}, "grammar"), ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"), (schema_format({}, name="bad name!"), "response_format.json_schema.name"),
    (schema_format({"not": {"type": "string"}}), "response_format.json_schema.schema.not"),
    (schema_format({"type": "object", "if": {}, "then": False}), "response_format.json_schema.schema.if"),
])
def test_what_cannot_be_enforced_is_refused(smollm2, members, param):  # K03
    refused(smollm2, CHAT, chat(max_tokens=4, **members), param)


def test_keywords_of_strings_hold_or_are_refused(smollm2):  # K03
    for schema, right in (({"type": "string", "pattern": "^[a-c]+$", "minLength": 2, "maxLength": 3}, "[a-c]{2,3}"),
                          ({"type": "string", "format": "date-time"}, r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*")):
        status, value = smollm2.post(CHAT, chat("Give one.", max_tokens=80, **schema_format(schema)))
        assert status == 400 or re.fullmatch(right, json.loads(value["choices"][0]["message"]["content"])), value


def test_characters_and_their_escapes_are_the_same(smollm2):  # K04
    words = ["漢字", "naïve", "🦀", 'a"b\\c\n ']
    body = chat("Give one.", max_tokens=80, seed=2, **schema_format({"enum": words})) | {"temperature": 1.2}
    said = [answer(smollm2, CHAT, json.dumps(body, ensure_ascii=escaped).encode())["choices"][0]["message"]["content"] for escaped in (True, False)]
    assert said[0] == said[1] and json.loads(said[0]) in words
    assert held(smollm2, closed(ключ={"const": "значение"})) == {"ключ": "значение"}


def test_strings_of_the_model_are_valid_json(smollm2):  # K05
    def one(seed):
        kind = schema_format(closed(s={"type": "string"})) if seed % 2 else {"response_format": {"type": "json_object"}}
        body = chat("A two line poem with a tab and quotes, as JSON.", max_tokens=80, seed=seed, **kind) | {"temperature": 1.5}
        return answer(smollm2, CHAT, body)["choices"][0]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ended = [c["message"]["content"] for c in pool.map(one, range(40)) if c["finish_reason"] == "stop"]
    assert ended and all(isinstance(json.loads(text), dict) for text in ended)


# -- N: leaving -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("members", [{"n": 4, "temperature": 1, "logprobs": True, "top_logprobs": 5}, {"response_format": {"type": "json_object"}},
                                     {"n": 3, "guided_regex": "[a-z ]{900}"}, {"tools": TOOLS, "tool_choice": "required"}])
def test_who_leaves_leaves_nothing(smollm2, members):  # N05
    stream = smollm2.stream(CHAT, chat("Tell a story.", stream=True, max_tokens=500) | members)
    events = stream.events()
    next(events)
    stream.close()
    assert until(lambda: smollm2.metric("sluice_requests_running") == 0 and smollm2.metric("sluice_kv_blocks_used") == 0)
