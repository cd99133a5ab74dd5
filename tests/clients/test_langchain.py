"""LangChain's OpenAI classes on a server of one's own."""
from typing import Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Light(BaseModel):
    colour: Literal["red", "green"]
    on: bool


@tool
def set_light(colour: Literal["red", "green"], on: bool) -> str:
    """Sets a lamp."""
    return f"{colour} {on}"


def chat(server, max_tokens=12):
    return ChatOpenAI(base_url=server.url + "/v1", api_key="none", model="SmolLM2", temperature=0, max_tokens=max_tokens)


def test_chats_and_streams(smollm2):
    whole = chat(smollm2).invoke("Name three rivers.")
    assert "".join(chunk.content for chunk in chat(smollm2).stream("Name three rivers.")) == whole.content != ""
    assert whole.response_metadata["finish_reason"] in ("stop", "length")
    assert whole.usage_metadata["output_tokens"] <= 12


def test_structured_output_is_an_object_of_the_class(smollm2):
    light = chat(smollm2, 80).with_structured_output(Light, method="json_schema").invoke("Turn the green lamp on.")
    assert isinstance(light, Light)


def test_a_forced_tool_can_be_run_with_what_it_is_called_with(smollm2):
    answer = chat(smollm2, 80).bind_tools([set_light], tool_choice="set_light").invoke("Turn the green lamp on.")
    (call,) = answer.tool_calls
    assert set_light.invoke(call["args"]).split()[0] in ("red", "green")


def test_batches_keep_their_order(smollm2):
    prompts = ["Count to three.", "Name a river.", "Say hello."]
    assert [a.content for a in chat(smollm2).batch(prompts)] == [chat(smollm2).invoke(p).content for p in prompts]


def test_embeds_texts(smollm2):
    embeddings = OpenAIEmbeddings(base_url=smollm2.url + "/v1", api_key="none", model="SmolLM2", check_embedding_ctx_length=False)
    first, second, again = embeddings.embed_documents(["a", "b", "a"])
    assert first == again != second and len(first) == len(second) > 0


def test_embeds_token_ids(smollm2):
    """By default LangChain cuts texts with OpenAI's tokenizer, which it fetches; what it then sends are lists of ids."""
    client = OpenAIEmbeddings(base_url=smollm2.url + "/v1", api_key="none", model="SmolLM2").client
    answer = client.create(input=[[1, 2, 3], [4, 5]], model="SmolLM2")
    assert len(answer.data) == 2 and answer.data[0].embedding != answer.data[1].embedding
