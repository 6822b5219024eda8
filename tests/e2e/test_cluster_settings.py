"""What a cluster sets and a laptop does not, in one whole training: packed rows, 16-bit compute,
many queue and loader processes, the released scale and entropy bonus, a bound on the gradient, two
ranks; killed, and resumed to the bit.
"""

import math

from test_exact_resume import EXACT, ONE_UPDATE, RANKS, timeless
from training_run import Run

ACTOR = "actor_rollout_ref.actor"
CLUSTER = [
    "actor_rollout_ref.model.use_remove_padding=True",
    f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16",
    f"{ACTOR}.loss_scale_factor='${{exgrpo.released_scale:}}'",
    f"{ACTOR}.policy_loss.entropy_agg=released",
    f"{ACTOR}.entropy_coeff=0.001",
    f"{ACTOR}.optim.skip_grad_bound=500",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=8",
    "data.dataloader_num_workers=8",
    *RANKS,
    "ray_kwargs.ray_init.num_cpus=32",
]


def test_a_run_with_a_clusters_settings_is_killed_and_goes_on_to_the_bit(
    make_settings, forks, tmp_path
):
    arguments = [
        "exgrpo.main_mix_ppo",
        *make_settings(tmp_path),
        *EXACT,
        *ONE_UPDATE,
        *CLUSTER,
        forks,
    ]
    arguments += [
        "trainer.experience_start_sratio=0",
        "trainer.total_training_steps=4",
        "trainer.save_freq=2",
    ]
    first = Run(tmp_path, arguments, "first")
    first.kill_after(3)
    second = Run(tmp_path, arguments, "second")
    resumed, before = second.wait(), first.metrics()
    assert sorted(resumed) == [3, 4]
    assert timeless(resumed[3]) == timeless(before[3])
    for metrics in resumed.values():
        assert metrics["experience/replayed_groups"] > 0 and metrics["actor/skipped_update"] == 0
        assert 0 < metrics["actor/entropy_loss"] < 10 and math.isfinite(metrics["actor/pg_loss"])
        assert metrics["training/rollout_probs_diff_max"] < 0.1  # bf16 against vLLM's fp32
