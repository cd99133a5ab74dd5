"""Thoughts as the official SDKs see them. The template makes a model that does not think begin with a thought."""
import anthropic
import openai
import pytest

from conftest import SMOLLM2, Server

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}")
MESSAGES = [{"role": "user", "content": "Name three rivers."}]


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "thinks.jinja"
    path.write_text(TEMPLATE)
    server = Server(SMOLLM2, "--chat-template", path)
    yield server
    status, log = server.stop()
    assert status == 0, log


def test_openai(thinker):
    with openai.OpenAI(base_url=thinker.url + "/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(model="", messages=MESSAGES, max_tokens=12, temperature=0)
        message = whole.choices[0].message
        assert message.reasoning_content and not message.content
        assert whole.usage.completion_tokens_details.reasoning_tokens == whole.usage.completion_tokens
        chunks = client.chat.completions.create(model="", messages=MESSAGES, max_tokens=12, temperature=0, stream=True)
        assert "".join(getattr(c.choices[0].delta, "reasoning_content", "") for c in chunks) == message.reasoning_content
        response = client.responses.create(model="", input=MESSAGES, max_output_tokens=12, temperature=0)
        (item,) = response.output
        assert item.type == "reasoning" and item.content[0].text == message.reasoning_content and response.output_text == ""
        with client.responses.stream(model="", input=MESSAGES, max_output_tokens=12, temperature=0) as stream:
            said = "".join(e.delta for e in stream if e.type == "response.reasoning_text.delta")
        assert said == message.reasoning_content


def test_anthropic(thinker):
    with anthropic.Anthropic(base_url=thinker.url, api_key="none", max_retries=0) as client:
        ask = dict(model="sluice", messages=MESSAGES, max_tokens=12, extra_body={"temperature": 0, "model": ""})
        (block,) = client.messages.create(**ask).content
        assert block.type == "thinking" and block.thinking and block.signature == ""
        with client.messages.stream(**ask) as stream:
            assert stream.get_final_message().content == [block]
        history = MESSAGES + [{"role": "assistant", "content": [block, {"type": "text", "text": "Rhine"}]}, {"role": "user", "content": "More."}]
        assert client.messages.create(**{**ask, "messages": history}).content


def test_a_form_is_not_thought_about(thinker):
    answer = thinker.post("/v1/chat/completions", {"messages": MESSAGES, "guided_choice": ["Rhine", "Nile"]})[1]["choices"][0]["message"]
    assert answer["content"] in ("Rhine", "Nile") and "reasoning_content" not in answer
