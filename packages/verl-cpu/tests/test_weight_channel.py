"""Weights from an actor's ranks to rollout workers by shared memory, and copies of weights that
stay as they were.
"""

import asyncio
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from verl.checkpoint_engine import CheckpointEngineRegistry
from verl.utils import fsdp_utils

from verl_cpu import weight_channel


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_channel, "FOLDER", tmp_path)
    monkeypatch.setattr(weight_channel, "PATIENCE_S", 0.2)
    return tmp_path


def channels(actors, rollouts):
    """As verl's CheckpointEngineManager builds them for one update."""
    cls = CheckpointEngineRegistry.get("shared_memory")
    sides = [
        [CheckpointEngineRegistry.new("shared_memory", bucket_size=1) for _ in range(n)]
        for n in (actors, rollouts)
    ]
    metadata = [engine.prepare() for side in sides for engine in side]
    for side, settings in zip(sides, cls.build_topology(actors, rollouts, metadata), strict=True):
        assert all(len(values) == len(side) for values in settings.values())
        for position, engine in enumerate(side):
            engine.init_process_group(
                **{name: values[position] for name, values in settings.items()}
            )
    return sides


def test_every_rollout_worker_gets_the_first_ranks_weights(folder):
    sent = {
        "a": torch.randn(3, 2),
        "b": torch.randn(4).to(torch.bfloat16),
        "transposed": torch.randn(2, 2).T,
    }
    sent["tied"] = sent["a"]

    async def update():
        actors, rollouts = channels(2, 2)

        async def received(engine):
            return {name: tensor async for name, tensor in engine.receive_weights(global_steps=1)}

        waiting = [asyncio.create_task(received(engine)) for engine in rollouts]
        await asyncio.sleep(0.03)
        assert not any(task.done() for task in waiting)
        await actors[1].send_weights((name, torch.zeros(1)) for name in sent)
        await actors[0].send_weights(iter(sent.items()))
        found = await asyncio.gather(*waiting)
        for engine in (*actors, *rollouts):
            engine.finalize()
        return found

    for weights in asyncio.run(update()):
        assert weights.keys() == sent.keys() and all(
            torch.equal(weights[name], sent[name]) for name in sent
        )
    assert not list(folder.iterdir())


def test_weights_that_do_not_come_are_waited_for_in_vain(folder):
    async def wait():
        _, (rollout,) = channels(1, 1)
        return [each async for each in rollout.receive_weights(global_steps=7)]

    with pytest.raises(TimeoutError, match="no weights of step 7"):
        asyncio.run(wait())


def test_saved_weights_stay_as_they_were_when_the_model_is_updated(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.Linear(2, 2, bias=False)
        mesh = init_device_mesh("cpu", (1,))
        model.weight = torch.nn.Parameter(distribute_tensor(torch.ones(2, 2), mesh))
        state, spec = fsdp_utils.fsdp2_sharded_save_to_cpu(model)
        with torch.no_grad():
            model.weight.mul_(3)
        fsdp_utils.fsdp2_sharded_load_from_cpu(model, state, spec)
        assert model.weight.to_local().tolist() == [[1, 1], [1, 1]]
    finally:
        dist.destroy_process_group()


def test_the_actor_imports_the_module_that_the_stack_names():
    source = (Path(fsdp_utils.__file__).parents[1] / "workers" / "engine_workers.py").read_text()
    assert "import_external_libs(checkpoint_engine_config.custom_backend_module or None)" in source
    stack = (Path(weight_channel.__file__).with_name("stack") / "cpu_separate.yaml").read_text()
    assert (
        f"custom_backend_module: {weight_channel.__name__}\n" in stack
        and "backend: shared_memory\n" in stack
    )


def test_what_a_killed_run_left_is_removed_and_what_lives_is_not(folder):
    left = folder / "verl_cpu_weights_4194305_ab.partial"  # above the highest pid
    alive = folder / "verl_cpu_weights_1_ab"
    for path in (left, alive):
        path.touch()
    channels(1, 1)
    assert list(folder.iterdir()) == [alive]
