"""An advantage estimator and a policy loss as a user of verl registers them; the name of this
module goes into VERL_USE_EXTERNAL_MODULES.
"""

import torch
from verl.trainer.ppo.core_algos import agg_loss, register_adv_est, register_policy_loss


@register_adv_est("users_estimator")
def half_the_lead(token_level_rewards, response_mask, index, config=None, **more):
    """Half of what a row's reward is above its group's mean."""
    rewards = token_level_rewards.sum(-1)
    groups = [[other == own for other in index] for own in index]
    means = torch.stack([rewards[torch.tensor(group)].mean() for group in groups])
    advantages = (rewards - means).unsqueeze(-1) / 2 * response_mask
    return advantages, advantages


@register_policy_loss("users_loss")
def ratio_times_advantage(
    old_log_prob,
    log_prob,
    advantages,
    response_mask,
    loss_agg_mode,
    config,
    rollout_is_weights=None,
):
    """The objective of fresh tokens in a mixed step, as exgrpo has it by default."""
    losses = -torch.exp(log_prob - old_log_prob) * advantages
    loss = agg_loss(losses, response_mask, loss_agg_mode, **config.global_batch_info)
    return loss, {"actor/users_loss": 1.0}
