"""verl's real actor on a CPU: python one_update.py PORT FOLDER..., one rank and one more in each
next folder.

FOLDER holds model/, rows.pt and cases.json (name -> Hydra overrides, update's settings). For each
case a fresh TrainingWorker (FSDP2 engine, verl's loss and reductions) trains on this rank's share
of the rows; rank 0 writes
NAME.pt: gradients as they are after the update, the metrics as they leave the worker, and which
rows of which rank were
in which micro-batch.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

os.environ |= {"VERL_PLATFORM": "cpu", "VERL_ENGINE_VENDOR": "exgrpo", "OMP_NUM_THREADS": "1"}

import torch
import torch.distributed as dist
from composed import job
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss


def worker(folder, overrides):
    """As verl's ActorRolloutRefWorker builds its actor."""
    config = job("stack=cpu", f"actor_rollout_ref.model.path={folder}/model", *overrides)
    settings = config.actor_rollout_ref.actor
    actor = omega_conf_to_dataclass(settings)
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    model.tokenizer = None
    actor.engine.use_dynamic_bsz = settings.use_dynamic_bsz
    actor.engine.max_token_len_per_gpu = settings.ppo_max_token_len_per_gpu
    actor.engine.micro_batch_size_per_gpu = settings.ppo_micro_batch_size_per_gpu
    made = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
    )
    made.reset()
    made.set_loss_fn(partial(ppo_loss, config=actor))
    return made


def share(rows, settings):
    """This rank's rows, as verl's dispatch cuts a batch."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    count = len(rows["row"]) // size
    mine = {name: values[rank * count : (rank + 1) * count] for name, values in rows.items()}
    mine["row"] = torch.tensor(mine["row"])
    nested = {
        name: torch.nested.as_nested_tensor(values, layout=torch.jagged)
        if isinstance(values, list)
        else values
        for name, values in mine.items()
    }
    batch = {
        "temperature": 1.0,
        "epochs": 1,
        "seed": 1,
        "dataloader_kwargs": {"shuffle": False},
        **settings,
    }
    return tu.get_tensordict(nested, batch)


def note_micro_batches(engine):
    """The rows of each micro-batch, in the order they went through the model."""
    seen, forward = [], engine.forward_step

    def noting(micro_batch, *arguments, **more):
        seen.append(micro_batch["row"].tolist())
        return forward(micro_batch, *arguments, **more)

    engine.forward_step = noting
    return seen


def keep_gradients(engine):
    """The whole gradients after the update; verl drops them when it leaves the training mode."""
    kept, step = {}, engine.optimizer_step

    def stepping():
        norm = step()
        grads = {name: parameter.grad for name, parameter in engine.module.named_parameters()}
        kept.update(
            {name: grad.full_tensor().clone() for name, grad in grads.items() if grad is not None}
        )
        return norm

    engine.optimizer_step = stepping
    return kept


def main(folder):
    torch.set_num_threads(1)
    PrecisionType.to_dtype = staticmethod(
        lambda name: torch.float64
    )  # what is left to differ are the formulas
    rows = torch.load(folder / "rows.pt")
    for name, case in json.loads((folder / "cases.json").read_text()).items():
        trained = worker(folder, case["overrides"])
        seen, gradients = note_micro_batches(trained.engine), keep_gradients(trained.engine)
        output = trained.train_mini_batch(share(rows[case["rows"]], case["settings"]))
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, seen)
        found = {
            "gradients": gradients,
            "micro_batches": everyone,
            "metrics": tu.get(output, "metrics"),
        }
        if dist.get_rank() == 0:
            torch.save(found, folder / f"{name}.pt")
    dist.barrier()
    dist.destroy_process_group()


def fork_ranks(folder, port, size):
    """Each rank in a fork, so that verl is imported once; the number of those that failed."""
    ranks = []
    for rank in range(size):
        if (pid := os.fork()) == 0:
            os.environ |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            main(Path(folder))
            sys.exit()
        ranks.append(pid)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in ranks)


if __name__ == "__main__":
    port, *folders = sys.argv[1:]
    sys.exit(sum(fork_ranks(folder, port, size) for size, folder in enumerate(folders, start=1)))
