"""Answers held to a form: what is said to have ended well is valid by an independent judge; what cannot be held is refused."""
import json
import re

import jsonschema
import pytest

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee", "water"]}, "minItems": 1, "maxItems": 3},
        "address": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/address"}]},
    },
    "required": ["name", "age", "likes", "address"],
    "additionalProperties": False,
    "$defs": {"address": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "zip": {
        "type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["city", "zip"], "additionalProperties": False}},
}
TREE = {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
    "value": {"type": "number"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
    "required": ["value", "children"]}}}
EVENT = {"type": "object", "properties": {"on": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"},
                                          "flag": {"type": ["boolean", "null"]}, "kind": {"const": "event"}},
         "required": ["on", "id", "flag", "kind"]}


def ask(server, text, tokens=300, **members):
    status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": tokens,
                                                          **members})
    assert status == 200, answer
    return answer["choices"][0]


@pytest.mark.parametrize("schema", [PERSON, TREE, EVENT], ids=["person", "tree", "event"])
@pytest.mark.parametrize("temperature", [0, 1, 1.8])
def test_what_ends_is_valid_by_the_schema(smollm2, schema, temperature):
    choice = ask(smollm2, "Make one up.", temperature=temperature, seed=7,
                 response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}})
    text = choice["message"]["content"]
    if choice["finish_reason"] == "stop":
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    else:
        assert choice["finish_reason"] == "length"
        assert text.lstrip().startswith("{")


def test_several_answers_at_once_are_each_valid(smollm2):
    status, answer = smollm2.post("/v1/completions", {"prompt": "JSON:", "n": 6, "max_tokens": 200, "guided_json": PERSON, "seed": 3})
    assert status == 200
    ended = [c for c in answer["choices"] if c["finish_reason"] == "stop"]
    assert ended
    for choice in ended:
        jsonschema.validate(json.loads(choice["text"]), PERSON)


def test_json_object(smollm2):
    choice = ask(smollm2, "Describe a cat as JSON.", response_format={"type": "json_object"}, temperature=0.7, seed=1)
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_regex_choice_and_grammar_hold(smollm2):
    assert re.fullmatch(r"\(\d{3}\) \d{3}-\d{4}", ask(smollm2, "A phone number?", guided_regex=r"\(\d{3}\) \d{3}-\d{4}")["message"]["content"])
    assert ask(smollm2, "Is water wet?", guided_choice=["yes", "no", "it \"depends\"\n"])["message"]["content"] in ("yes", "no", "it \"depends\"\n")
    gbnf = "# a sum\nroot ::= digit (\" + \" digit){1,3}\ndigit ::= [0-9]"
    for member in ("grammar", "guided_grammar"):
        assert re.fullmatch(r"\d( \+ \d){1,3}", ask(smollm2, "A sum?", **{member: gbnf})["message"]["content"])
    assert ask(smollm2, "?", structured_outputs={"choice": ["left", "right"]}, temperature=2)["message"]["content"] in ("left", "right")


def test_a_grammar_that_allows_nothing_more_ends_with_stop(smollm2):
    choice = ask(smollm2, "Say it.", guided_choice=["exactly this"], temperature=0)
    assert choice["message"]["content"] == "exactly this"
    assert choice["finish_reason"] == "stop"


def test_with_min_tokens_bias_penalties_and_logprobs(smollm2):
    choice = ask(smollm2, "Name a colour.", guided_regex="(red|green|blue)( (red|green|blue)){0,5}", min_tokens=4, temperature=0.5, seed=2,
                 frequency_penalty=1.5, repetition_penalty=1.2, logit_bias={"5": 100}, logprobs=True, top_logprobs=2)
    assert re.fullmatch("(red|green|blue)( (red|green|blue)){0,5}", choice["message"]["content"])
    assert len(choice["logprobs"]["content"]) >= 3
    assert "".join(chr(b) for t in choice["logprobs"]["content"] for b in t["bytes"]) == choice["message"]["content"]


def test_streamed_equals_whole(smollm2):
    body = {"messages": [{"role": "user", "content": "A person."}], "max_tokens": 120, "temperature": 0, "guided_json": PERSON}
    whole = smollm2.post("/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    stream = smollm2.stream("/v1/chat/completions", body)
    text = "".join(e["choices"][0]["delta"].get("content") or "" for e in stream.events() if e != "[DONE]")
    stream.close()
    assert text == whole



@pytest.mark.parametrize("members,param", [
    ({"guided_regex": "((((a{1,9999}){1,9999}){1,9999}){1,9999}){1,9999}b"}, None),
    ({"guided_regex": "(" * 5000 + "a" + ")" * 5000}, "guided_regex"),
    ({"guided_regex": "a" * 20000}, "guided_regex"),
    ({"guided_regex": "(a"}, "guided_regex"),
    ({"guided_grammar": "root ::= nothing"}, "guided_grammar"),
    ({"grammar": "\n".join(f"r{i} ::= r{i + 1}" for i in range(9000))}, "grammar"),
    ({"guided_json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20000)}}}, None),
    ({"guided_json": {"enum": list(range(100000))}}, "guided_json.enum"),
    ({"guided_json": {"enum": ["x" * 1000 + str(i) for i in range(1000)]}}, "guided_json"),
    ({"guided_json": {"type": "string", "contentEncoding": "base64"}}, "guided_json.contentEncoding"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {
        "type": "array", "uniqueItems": True}}}}}}, "response_format.json_schema.schema.properties.a.uniqueItems"),
    ({"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}, "guided_json"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
])
def test_bad_forms_are_refused_and_others_are_served(smollm2, members, param):
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, **members}
    status, answer = smollm2.post("/v1/chat/completions", body)
    if param is None:  # it may compile within the bounds, or be refused for what it costs; both are fine, and neither ends the server
        assert status in (200, 400), answer
    else:
        assert status == 400, answer
        assert answer["error"]["param"].startswith(param), answer
    assert ask(smollm2, "Still there?", tokens=2)["finish_reason"] in ("stop", "length")


def test_a_schema_nested_ten_thousand_deep(smollm2):
    body = '{"messages":[{"role":"user","content":"x"}],"guided_json":' + '{"items":' * 10000 + "{}" + "}" * 10000 + "}"
    status, answer = smollm2.post("/v1/chat/completions", body.encode())
    assert status == 400, answer
    assert smollm2.get("/health")[0] == 200
