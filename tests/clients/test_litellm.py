"""LiteLLM, as people use it in front of a server of their own: through the OpenAI and the Anthropic API."""
import json

import litellm
import pytest

MESSAGES = [{"role": "user", "content": "Name three rivers."}]
TOOL = {"type": "function", "function": {"name": "set_light", "description": "Sets a lamp.", "parameters": {
    "type": "object", "properties": {"colour": {"enum": ["red", "green"]}, "on": {"type": "boolean"}}, "required": ["colour", "on"],
    "additionalProperties": False}}}


def call(server, provider="openai", path="/v1", **more):
    return litellm.completion(model=f"{provider}/SmolLM2", api_base=server.url + path, api_key="none", **{"messages": MESSAGES, "max_tokens": 12,
                                                                                                        "temperature": 0, **more})


@pytest.mark.parametrize("provider, path", [("openai", "/v1"), ("anthropic", "")])
def test_streams_what_it_gets_whole(smollm2, provider, path):
    whole = call(smollm2, provider, path)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in call(smollm2, provider, path, stream=True))
    assert text == whole.choices[0].message.content != ""
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert 0 < whole.usage.completion_tokens <= 12 and whole.usage.prompt_tokens > 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_tool_is_called_with_arguments_that_fit(smollm2, stream):
    choice = {"type": "function", "function": {"name": "set_light"}}
    answer = call(smollm2, tools=[TOOL], tool_choice=choice, max_tokens=80, stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    (made,) = answer.choices[0].message.tool_calls
    arguments = json.loads(made.function.arguments)
    assert made.function.name == "set_light" and arguments["colour"] in ("red", "green") and arguments["on"] in (True, False)


def test_embeds(smollm2):
    answer = litellm.embedding(model="openai/SmolLM2", api_base=smollm2.url + "/v1", api_key="none", input=["a", "b"], encoding_format="float")
    first, second = (item["embedding"] for item in answer.data)
    assert len(first) == len(second) > 0 and first != second


def test_raises_its_own_errors(smollm2):
    with pytest.raises(litellm.exceptions.BadRequestError, match="max_tokens"):
        call(smollm2, max_tokens=-1)
    with pytest.raises(litellm.exceptions.NotFoundError):
        litellm.completion(model="openai/no-such-model", api_base=smollm2.url + "/v1", api_key="none", messages=MESSAGES)
