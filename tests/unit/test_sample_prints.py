"""What a run shows of its first prompt; the first response is in tests/queue, since it comes out of
the queue.
"""

from pathlib import Path

import pytest

pytest.importorskip("verl")
from exgrpo.on_verl import sample_prints
from exgrpo.on_verl.sample_prints import clipped, first_prompt
from exgrpo.prompts import load_tokenizer

BASE_MODEL = Path(__file__).parents[2] / "exp_scripts" / "quickstart" / "base_model"


class Questions:
    apply_chat_template_kwargs = {"end": "<think>\n"}  # noqa: RUF012

    def __getitem__(self, row):
        return {"raw_prompt": [{"role": "user", "content": f"{row}+1"}]}


def test_the_first_prompt_is_rendered_as_the_model_is_shown_it():
    tokenizer = load_tokenizer(BASE_MODEL)
    tokenizer.chat_template = (
        "{{ messages[0].content }}{% if add_generation_prompt %}{{ end }}{% endif %}"
    )
    said = first_prompt(Questions(), tokenizer)
    count = len(tokenizer.encode("0+1<think>\n"))
    assert said == f"exgrpo: the data's first prompt, {count} tokens:\n0+1<think>\n"


def test_a_long_text_shows_its_two_ends_and_what_is_missing(monkeypatch):
    monkeypatch.setattr(sample_prints, "MAX_CHARACTERS", 10)
    assert clipped("0123456789") == "0123456789"
    assert clipped("abcdefghijklm") == "abcde\n[... 3 characters ...]\nijklm"
