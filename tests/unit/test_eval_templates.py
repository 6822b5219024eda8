"""eval/generate/templates.py: each format to the letter."""

from pathlib import Path

import pytest

from exgrpo_eval.generate.templates import TEMPLATES

ROOT = Path(__file__).parents[2]

QUESTION = r"What is $\frac{1}{2}$ of {question}?"  # braces, and our own mark, must come through
USER = [{"role": "user", "content": QUESTION}]
SYSTEM = [{"role": "system", "content": "Think."}]


class Tokenizer:
    """Stands in for a model's: a chat template one can read."""

    chat_template = "the template"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return (
            "".join(f"[{turn['role']}]{turn['content']}" for turn in messages)
            + "[assistant]<think>\n"
        )


def chat(text):
    return f"[user]{text}[assistant]<think>\n"


def chatml(system, user):
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"  # noqa: E501


ZERO = (
    "A conversation between User and Assistant. The user asks a question, and the "
    "Assistant solves it. The assistant"
    " first thinks about the reasoning process in the mind and then provides the user with "
    "the answer. The reasoning"
    " process and answer are enclosed within <think> </think> and <answer> </answer> tags, "
    "respectively, i.e., <think>"
    " reasoning process here </think> <answer> answer here </answer>. User: "
)
BOXED = r"Present the answer in LaTex format: \boxed{Your answer}"


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("own", chat(QUESTION)),
        ("no", QUESTION),
        (
            "qwen",
            chatml(
                r"Please reason step by step, and put your final answer within \boxed{}.", QUESTION
            ),
        ),
        (
            "simplerl",
            chatml(
                "You are a helpful assistant.",
                QUESTION
                + "\n"
                + r"Please reason step by step, and put your final answer within \boxed{}.",
            ),
        ),
        ("prime", f"{ZERO}{QUESTION}\n\n{BOXED}. Assistant:"),
        ("prime_sft", chat(f"{QUESTION}\n\n{BOXED}")),
        (
            "prime_code",
            f"{ZERO}{QUESTION}\n\nWrite Python code to solve the problem. Present the code "
            "in \n```python\nYour code\n"
            "```\nat the end.. Assistant:",
        ),
        ("repo", chat(QUESTION)),
        ("step_by_step", f"User: {QUESTION}\nAnswer: Let's think step by step.\n"),
    ],
)
def test_each_format(name, prompt):
    assert TEMPLATES[name].render(USER, Tokenizer()) == prompt


def test_the_list_is_the_released_one_and_the_papers_for_llama_base():
    released = ["own", "simplerl", "qwen", "prime", "prime_sft", "prime_code", "repo", "no"]
    assert list(TEMPLATES) == [*released, "step_by_step"]


def test_only_own_has_a_place_for_a_system_message():
    kept = TEMPLATES["own"].render(SYSTEM + USER, Tokenizer())
    assert kept == f"[system]Think.[user]{QUESTION}[assistant]<think>\n"
    for name in set(TEMPLATES) - {"own"}:
        with pytest.raises(ValueError, match="turns system, user: only --template own"):
            TEMPLATES[name].render(SYSTEM + USER, Tokenizer())


def test_the_hash_follows_the_wording_and_the_chat_template_it_uses():
    other = Tokenizer()
    other.chat_template = "another"
    changed = {
        name
        for name, template in TEMPLATES.items()
        if template.sha256(Tokenizer()) != template.sha256(other)
    }
    assert (
        changed
        == {name for name, template in TEMPLATES.items() if template.chat}
        == {"own", "prime_sft", "repo"}
    )
    hashes = {name: template.sha256(Tokenizer()) for name, template in TEMPLATES.items()}
    assert (
        hashes.pop("repo") == hashes["own"]
    )  # the same wording; they differ in the system message
    assert len(set(hashes.values())) == len(hashes)


def test_with_a_real_chat_template():
    transformers = pytest.importorskip("transformers")
    model = ROOT / "exp_scripts" / "quickstart" / "base_model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    assert TEMPLATES["own"].render([{"role": "user", "content": "1+2"}], tokenizer) == "1+2\n"
