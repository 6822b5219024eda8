"""Where the runner lives in a Ray cluster, and that a Ray has one training at a time."""

import subprocess
import sys
import threading

import pytest
import ray
from composed import job

from exgrpo.on_verl import queue

NODES = """
import ray
from ray.cluster_utils import Cluster
from exgrpo.on_verl.task_runner import OnThisNode

class Where:
    def node(self):
        return ray.get_runtime_context().get_node_id()

nodes = dict(num_cpus=2, num_gpus=1, object_store_memory=80_000_000, include_dashboard=False)
cluster = Cluster(initialize_head=True, head_node_args=nodes)
for _ in range(3):
    cluster.add_node(**nodes)
ray.init(address=cluster.address)
runners = [OnThisNode(ray.remote(Where)).options(max_concurrency=2).remote() for _ in range(6)]
found = {ray.get(runner.node.remote()) for runner in runners}
print(len(ray.nodes()), found == {ray.get_runtime_context().get_node_id()})
ray.shutdown()
cluster.shutdown()
"""


def test_the_runner_is_where_the_command_is_given_though_every_node_has_gpus():
    done = subprocess.run(
        [sys.executable, "-c", NODES], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["4 True"], done.stderr[-2000:]


def test_a_second_training_in_a_ray_is_refused():
    with pytest.raises(
        RuntimeError, match="has a TransferQueueController already, that of another training"
    ):
        queue.start(job(), patience_s=0)  # that of tests/queue is there


def test_the_queue_of_a_training_that_has_just_ended_is_waited_for(monkeypatch):
    @ray.remote(num_cpus=0)
    class Ending:
        pass

    monkeypatch.setattr(queue, "CONTROLLER", "of a training that ends")
    actor = Ending.options(name=queue.CONTROLLER, namespace=queue.NAMESPACE).remote()
    ray.get(actor.__ray_ready__.remote())
    threading.Timer(1, ray.kill, [actor]).start()
    queue.start(job(), patience_s=30)
    assert not queue._is_there()
