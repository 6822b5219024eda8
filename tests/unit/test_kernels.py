"""Which attention and which log-probs a run takes: by what is installed, by the card; a user's
value wins.
"""

import sys
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch
from composed import job
from omegaconf import OmegaConf

from exgrpo.config import kernels
from exgrpo.on_verl.triton_start import compile_log_prob_kernels
from exgrpo.preflight import checks

MODEL = "actor_rollout_ref.model"
SHIFTED = f"{MODEL}.use_remove_padding=False"
PRECISE = "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype: fp32}"


@pytest.fixture
def machine(monkeypatch):
    """Put packages and a card there: `machine("flash-attn", card=9)`; triton and torch 2.11 are."""

    def put(*packages, card=9, torch="2.11.0"):
        versions = {"torch": torch, "triton": "3.6.0", **dict.fromkeys(packages, "1.0")}

        def version(name):
            if name not in versions:
                raise metadata.PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr(kernels, "capability", lambda: card)

    put()
    return put


def chosen(*overrides):
    """Attention, whether log-probs are fused, and by what, as `--cfg job --resolve` prints them."""
    model = job(*overrides).actor_rollout_ref.model
    options = model.fused_kernel_options
    return model.override_config.attn_implementation, model.use_fused_kernels, options.impl_backend


@pytest.mark.parametrize(
    ("packages", "card", "overrides", "expected"),
    [
        ([], 9, [], ("torch_varlen", True, "triton")),
        ([], None, [], ("torch_varlen", True, "triton")),  # a login node
        ([], 9, ["stack=one_gpu"], ("torch_varlen", True, "triton")),
        (["flash-attn"], 9, [], ("flash_attention_2", False, "triton")),
        (
            ["flash-attn-4"],
            9,
            [],
            ("torch_varlen", True, "triton"),
        ),  # its module is flash_attn, too
        ([], 7, [], ("sdpa", True, "torch")),
        ([], 9, [SHIFTED], ("sdpa", True, "triton")),
        ([], 9, [PRECISE], ("sdpa", True, "torch")),
        (
            [],
            9,
            ["actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"],
            ("sdpa", True, "triton"),
        ),
        ([], 9, ["distillation.enabled=True"], ("torch_varlen", False, "triton")),
        (
            [],
            9,
            ["actor_rollout_ref.actor.calculate_sum_pi_squared=True"],
            ("torch_varlen", False, "triton"),
        ),
        ([], 9, ["trainer.device=cpu"], ("sdpa", False, "torch")),
        ([], None, ["stack=cpu"], ("sdpa", False, "torch")),
        # a user's own values
        ([], 9, [f"{MODEL}.override_config.attn_implementation=sdpa"], ("sdpa", True, "triton")),
        (
            ["flash-attn"],
            9,
            [f"{MODEL}.use_fused_kernels=True"],
            ("flash_attention_2", True, "triton"),
        ),
        (
            [],
            9,
            [f"{MODEL}.fused_kernel_options.impl_backend=torch"],
            ("torch_varlen", True, "torch"),
        ),
    ],
)
def test_what_is_installed_decides(machine, packages, card, overrides, expected):
    machine(*packages, card=card)
    assert chosen(*overrides) == expected


@pytest.mark.parametrize(("width", "backend"), [(1536, "triton"), (576, "torch")])
def test_the_triton_kernels_are_for_some_widths_alone(machine, tmp_path, width, backend):
    (tmp_path / "config.json").write_text(f'{{"hidden_size": {width}}}')
    assert chosen(f"{MODEL}.path={tmp_path}")[2] == backend
    given = job(f"{MODEL}.path={tmp_path}", f"{MODEL}.fused_kernel_options.impl_backend=triton")
    if backend == "triton":
        checks._log_probs(given)
        return
    with pytest.raises(
        ValueError,
        match=r"impl_backend=triton: needs a hidden_size that 128 divides, the model's is 576; "
        r"torch",
    ):
        checks._log_probs(given)


def test_a_width_that_is_known_late_is_refused_with_what_to_do():
    text = SimpleNamespace(hidden_size=576, vocab_size=8)
    model = SimpleNamespace(
        use_fused_kernels=True,
        fused_kernel_options={"impl_backend": "triton"},
        hf_config=SimpleNamespace(get_text_config=lambda: text),
    )
    with pytest.raises(
        ValueError,
        match=r"impl_backend=triton: needs a hidden_size that 128 divides.* torch takes any",
    ):
        compile_log_prob_kernels(model, torch.bfloat16, "cuda")
    compile_log_prob_kernels(model, torch.bfloat16, "cpu")  # nothing to compile


def test_an_older_torch_has_no_such_attention(machine):
    machine(torch="2.9.1")
    assert chosen()[0] == "sdpa"


def test_the_choices_are_put_into_the_configuration_for_processes_without_the_resolvers(machine):
    config = job("actor_rollout_ref.rollout.temperature=1")
    kernels.write_choices(config)
    written = OmegaConf.to_container(config.actor_rollout_ref.model)
    assert written["override_config"]["attn_implementation"] == "torch_varlen"
    assert written["use_fused_kernels"] is True and written["fused_kernel_options"] == {
        "impl_backend": "triton"
    }
    assert written["external_lib"] == kernels.VARLEN_MODULE
    assert type(config.actor_rollout_ref.rollout.temperature) is float, (
        "the Triton kernels refuse an integer"
    )


@pytest.mark.parametrize("given", ["mine", ["mine", "yours"]])
def test_the_users_own_modules_are_imported_too(machine, given):
    config = job()
    config.actor_rollout_ref.model.external_lib = given
    for _ in range(2):  # once is enough
        kernels.write_choices(config)
        modules = list(config.actor_rollout_ref.model.external_lib)
        assert modules == [*([given] if isinstance(given, str) else given), kernels.VARLEN_MODULE]


def test_a_line_says_what_the_actor_computes_with(machine):
    assert kernels.line(job()) == (
        "exgrpo: the actor's attention is torch_varlen, its log-probs are fused (triton); "
        "flash-attn is not installed"
    )
    machine("flash-attn")
    assert kernels.line(job()) == (
        "exgrpo: the actor's attention is flash_attention_2, its log-probs are from logits"
    )


@pytest.mark.parametrize(
    ("packages", "card", "value", "refused"),
    [
        (
            [],
            9,
            "flash",
            "must be one of flash_attention_2, flash_attention_3, flash_attention_4, torch_varlen",
        ),
        ([], 9, "flash_attention_2", "the package flash-attn is not installed; torch_varlen works"),
        (["flash-attn-4"], 9, "flash_attention_2", "the package flash-attn is not installed"),
        ([], 9, "flash_attention_3", "the package flash-attn-3 is not installed"),
        ([], 9, "flash_attention_4", "the package flash-attn-4 is not installed"),
        (
            ["flash-attn-4"],
            8,
            "flash_attention_4",
            "needs compute capability 9 or more, the first GPU has 8",
        ),
        (
            ["flash-attn"],
            7,
            "flash_attention_2",
            "needs compute capability 8 or more, the first GPU has 7; sdpa works",
        ),
        (
            [],
            7,
            "torch_varlen",
            "needs compute capability 8 or more, the first GPU has 7; sdpa works",
        ),
        (["flash-attn"], 9, "flash_attention_2", None),
        (["flash-attn-4"], 9, "flash_attention_4", None),
        ([], 9, "torch_varlen", None),
        ([], 7, "sdpa", None),
        ([], 9, "kernels-community/flash-attn", None),
    ],
)
def test_an_attention_that_cannot_run_is_refused_with_its_reason(
    machine, packages, card, value, refused
):
    machine(*packages, card=card)
    config = job(f"{kernels.ATTENTION}={value}")
    if refused is None:
        checks._attention(config)
        return
    with pytest.raises(ValueError) as error:
        checks._attention(config)
    assert refused in str(error.value) and f"attn_implementation={value}:" in str(error.value)


def test_padded_rows_and_sequence_parallelism_are_refused(machine):
    with pytest.raises(ValueError, match=r"torch_varlen: needs .*use_remove_padding=True; sdpa"):
        checks._attention(job(SHIFTED, f"{kernels.ATTENTION}=torch_varlen"))
    parallel = "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"
    with pytest.raises(ValueError, match="torch_varlen: knows no sequence parallelism"):
        checks._attention(job(parallel, f"{kernels.ATTENTION}=torch_varlen"))
    with pytest.raises(ValueError, match="size=2: must be 1 with attn_implementation=sdpa"):
        checks._attention(job(parallel, f"{kernels.ATTENTION}=sdpa"))


@pytest.mark.parametrize("fault", ["no package", "no driver"])
def test_without_a_card_none_is_seen(monkeypatch, fault):
    def fail():
        raise OSError("no driver")

    monkeypatch.setitem(
        sys.modules, "pynvml", None if fault == "no package" else SimpleNamespace(nvmlInit=fail)
    )
    kernels.capability.cache_clear()
    assert kernels.capability() is None
    kernels.capability.cache_clear()
