"""What a step waits for, watched: who dies, is stopped or does not come back is named in the error
that ends the wait.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import ray
import transfer_queue as tq

from exgrpo.on_verl import queue, watch
from exgrpo.on_verl.task_runner import Lost
from exgrpo.on_verl.watch import Watch

NODE = """
import os, signal, threading, time
from pathlib import Path
import psutil
import ray
from ray.cluster_utils import Cluster
from exgrpo.on_verl import watch

@ray.remote(resources={"there": 1})
class Worker: ...

@ray.remote(num_cpus=0, resources={"here": 1})
class Here:
    def pid(self):
        return os.getpid()

nodes = dict(num_cpus=1, object_store_memory=80_000_000, include_dashboard=False)
cluster = Cluster(initialize_head=True, head_node_args=nodes | {"resources": {"here": 1}})
second = cluster.add_node(num_cpus=1, object_store_memory=80_000_000, resources={"there": 1})
ray.init(address=cluster.address, log_to_driver=False)
worker = Worker.options(name="reward_loop_worker_0").remote()
here = Here.options(name="agent_loop_worker_0").remote()
stopped = psutil.Process(ray.get(here.pid.remote()))
ray.get(worker.__ray_ready__.remote())
watch.LOOK_S, watch.REPLY_S = 0.2, 5
threading.Timer(1, cluster.remove_node, [second]).start()
threading.Timer(1, stopped.suspend).start()
try:
    with watch.Watch(lambda: (3, 0), Path("nowhere"), None):
        time.sleep(60)
except watch.Lost as lost:
    print(lost)
    psutil.wait_procs([stopped], timeout=10)
    print(stopped.is_running() and stopped.status() != psutil.STATUS_ZOMBIE)
"""


@ray.remote(num_cpus=0)
class Actor:
    def pid(self):
        return os.getpid()


@pytest.fixture
def quick(monkeypatch):
    """A watch that looks often, and leaves the queue of these tests alone."""
    monkeypatch.setattr(Watch, "_kill", lambda self: None)
    for name, value in {"LOOK_S": 0.2, "REPLY_S": 0.2, "ANSWER_S": 3.0, "END_S": 1e6}.items():
        monkeypatch.setattr(watch, name, value)


@pytest.fixture
def actor(request):
    """Makes an actor of a name in the queue's namespace; stopped ones go on in the end."""
    made = []

    def make(name):
        made.append(Actor.options(name=name, namespace=queue.NAMESPACE).remote())
        return made[-1], ray.get(made[-1].pid.remote())

    yield make
    for each in made:
        ray.kill(each)


@ray.remote(num_cpus=0)
class Server:
    """A rollout server whose engine has died."""

    def collective_rpc(self, method):
        class EngineDeadError(Exception):
            """vLLM's, by its name."""

        raise EngineDeadError(method)


def watching(root, patience=None):
    return Watch(lambda: (7, 0), root, patience)


def sample(seconds=60.0):
    """What the trainer does while it waits for rollouts: its name is verl's."""
    time.sleep(seconds)


def lost(wait, root, patience=None):
    """The line with which a wait under a watch ends."""
    with pytest.raises(Lost) as ended, watching(root, patience):
        wait()
    return str(ended.value)


@pytest.mark.usefixtures("quick")
def test_who_dies_is_named_with_what_is_saved(actor, tmp_path):
    _, pid = actor("agent_loop_worker_0_abc")
    threading.Timer(0.5, os.kill, [pid, signal.SIGKILL]).start()
    line = "an agent-loop worker (agent_loop_worker_0_abc) has died; in step 7, at rollouts. "
    assert lost(sample, tmp_path) == f"{line}Nothing is saved yet; the same command begins anew"
    for step in (3, 4):
        (tmp_path / f"global_step_{step}").mkdir()
    (tmp_path / "global_step_3" / "seal.json").touch()
    met, pid = actor("agent_loop_worker_1_abc")

    def meet():
        os.kill(pid, signal.SIGKILL)
        ray.get(met.pid.remote())

    line = lost(meet, tmp_path)  # whose error comes before the watch has looked
    assert line.startswith("an agent-loop worker (agent_loop_worker_1_abc) has died; in step 7")
    assert line.endswith(
        f". {tmp_path}/global_step_3 is saved; the same command goes on from there"
    )


@pytest.mark.usefixtures("quick")
def test_a_wait_for_ray_is_ended_too(actor, tmp_path):
    waited, _ = actor("worker_0")
    _, pid = actor("reward_loop_worker_1")
    _, stopped = actor("worker_1")
    os.kill(stopped, signal.SIGSTOP)
    threading.Timer(0.5, os.kill, [pid, signal.SIGKILL]).start()
    never = ray.get_actor("worker_1", queue.NAMESPACE).pid.remote()
    assert "a reward worker (reward_loop_worker_1) has died" in lost(
        lambda: ray.get(never), tmp_path
    )
    assert waited


@pytest.mark.usefixtures("quick")
def test_a_queue_that_hangs_is_named(actor, tmp_path):
    _, pid = actor(f"{queue.STORAGE}#7")
    os.kill(pid, signal.SIGSTOP)
    assert f"a storage unit of the queue ({queue.STORAGE}#7) has not answered for" in lost(
        sample, tmp_path
    )


@pytest.mark.usefixtures("quick")
def test_an_engine_that_died_in_a_server_that_lives(tmp_path):
    server = Server.options(name="vllm_server_0_0", namespace=queue.NAMESPACE).remote()
    ray.get(server.__ray_ready__.remote())
    line = lost(sample, tmp_path)
    ray.kill(server)
    assert line.startswith("the engine of vllm_server_0_0 has died; in step 7, at rollouts. ")


@pytest.mark.usefixtures("quick")
def test_a_controller_that_hangs_while_it_is_asked(tmp_path):
    controller = ray.get_actor(queue.CONTROLLER, queue.NAMESPACE)
    pid = ray.get(controller.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGSTOP)
    try:
        line = lost(tq.kv_list, tmp_path)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert line.startswith("the queue's controller (TransferQueueController) has not answered for")


@pytest.mark.usefixtures("quick")
def test_rollouts_that_do_not_come_back(actor, tmp_path, training_queue):
    _, pid = actor("agent_loop_worker_0_abc")
    os.kill(pid, signal.SIGSTOP)
    tag = {"is_prompt": True, "status": "running", "global_steps": 7}
    tq.kv_batch_put(keys=["a", "b"], partition_id=training_queue, tags=[tag, tag])

    def put():
        for number in range(4):
            time.sleep(1)
            key = f"a_{number}_0"
            tq.kv_batch_put(keys=[key], partition_id=training_queue, tags=[{"status": "success"}])

    began, rows = time.monotonic(), threading.Thread(target=put)
    rows.start()
    line = lost(sample, tmp_path, patience=2.0)
    rows.join()
    assert time.monotonic() - began > 5  # each rollout is a sign
    assert line.startswith("no rollout has finished for ")
    assert "2 prompts are out (an agent-loop worker (agent_loop_worker_0_abc) does not" in line


@pytest.mark.usefixtures("quick")
def test_who_waits_for_nothing_in_vain_is_left_alone(tmp_path):
    with watching(tmp_path):
        sample(1.5)
    with pytest.raises(ZeroDivisionError), watching(tmp_path):
        print(1 / 0)


def test_limits_follow_what_was_seen(tmp_path):
    usual, given = watching(tmp_path), watching(tmp_path, 60.0)
    assert [each.limit(watch.ROLLOUTS) for each in (usual, given)] == [watch.FIRST_S, 60]
    for each in (usual, given):
        each._longest = {watch.ROLLOUTS: 500.0, "the update": 5.0}
    assert [usual.limit(part) for part in (watch.ROLLOUTS, "the update")] == [5000, 1800]
    assert [given.limit(part) for part in (watch.ROLLOUTS, "the update")] == [60, 60]
    assert given.limit("the save") == watch.FIRST_S
    usual._has_stepped = given._has_stepped = True
    assert [each.limit("the save") for each in (usual, given)] == [1800, 60]


def test_parts_are_functions_of_verls_trainers():
    from verl.checkpoint_engine import CheckpointEngineManager
    from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    classes = (PPOTrainer, ReplayBufferAsync, CheckpointEngineManager)
    assert all(any(hasattr(each, name) for each in classes) for name in watch.PARTS)


def test_a_node_that_is_gone_and_a_stopped_process_that_does_not_stay():
    done = subprocess.run([sys.executable, "-c", NODE], capture_output=True, text=True, check=False)
    said = done.stdout.splitlines()  # Ray writes there too
    line = "a reward worker (reward_loop_worker_0) has died, its node is gone; in step 3"
    assert any(each.startswith(line) for each in said), done.stderr[-2000:]
    assert "False" in said
