"""lm-eval's local-completions model runs small tasks to the end: by log-probabilities of given answers, and by generating."""
import json

import lm_eval
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
CHOICE = """output_type: multiple_choice
target_delimiter: ""
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""
GENERATE = """output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n", ","], max_gen_toks: 4, do_sample: false}
metric_list: [{metric: exact_match}]
filter_list: [{name: stripped, filter: [{function: remove_whitespace}, {function: take_first}]}]
"""
QUESTIONS = [("The capital of France is", [" Paris", " a spoon"]), ("1, 2, 3, 4,", [" 5", " horse"]), ("The opposite of hot is", [" cold", " seven"]),
             ("Water is wet and fire is", [" hot", " Tuesday"])]


class TokenizerOfServer:
    """lm-eval must know how many tokens a context has. Its own ways are a tokenizer from the hub, or routes of vLLM's."""

    def __init__(self, server):
        self.server = server

    def encode(self, text):
        assert isinstance(text, str)  # lists go to encode_batch
        return self.server.post("/tokenize", {"content": text})[1]["tokens"]

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]


def evaluate(server, folder, name, form, rows):
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"{name}.yaml").write_text(TASK.format(name=name, data=data) + form)
    model = LocalCompletionsAPI(model="SmolLM2", base_url=f"{server.url}/v1/completions", tokenizer_backend=None, num_concurrent=2, max_retries=1)
    model.tokenizer, model.tokenizer_backend, model.tokenized_requests = TokenizerOfServer(server), "server", True
    return lm_eval.simple_evaluate(model=model, tasks=[name], task_manager=TaskManager(include_path=str(folder)))["results"][name]


def test_a_multiple_choice_task(smollm2, tmp_path):
    rows = [{"question": q, "choices": c, "answer": 0} for q, c in QUESTIONS]
    assert evaluate(smollm2, tmp_path, "rivers", CHOICE, rows)["acc,none"] >= 0.75


def test_a_task_that_generates(smollm2, tmp_path):
    rows = [{"question": "1, 2, 3, 4,", "answer": "5"}, {"question": "10, 11, 12, 13,", "answer": "14"}]
    assert evaluate(smollm2, tmp_path, "counting", GENERATE, rows)["exact_match,stripped"] == 1
