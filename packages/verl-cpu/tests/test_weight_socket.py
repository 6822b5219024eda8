"""Two trainings on one machine, each with a Ray of its own: verl names their sockets alike."""

import json
import os
import subprocess
import sys

ENDS = """
import asyncio, json, os, sys, threading
import verl, torch
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer
from verl_cpu import vllm_on_cpu, weight_socket

vllm_on_cpu.install()
weight_socket.install()
of_verl = f"ipc://{sys.argv[1]}/job-1-rank-0.sock"
pairs, received = [], {}
for training in ("a", "b"):
    os.environ[weight_socket.TRAINING] = training
    sender = transfer.BucketedWeightSender(of_verl, bucket_size_mb=1, use_shm=True)
    weight_socket.install()  # as in vLLM's processes, which load plug-ins more than once
    pairs.append((sender, transfer.BucketedWeightReceiver(of_verl, torch.device("cpu"), use_shm=True)))

def send(number):
    asyncio.run(pairs[number][0].async_send_weights(iter([("weight", torch.full((2,), float(number)))])))

def receive(number):
    def keep(weights, is_last):
        received.update({number: tensor.tolist() for _, tensor in weights})
    pairs[number][1].receive_weights(on_bucket_received=keep)

threads = [threading.Thread(target=end, args=(number,), daemon=True) for number in (0, 1) for end in (send, receive)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(10)
del os.environ[weight_socket.TRAINING]
plain = transfer.BucketedWeightSender(of_verl, use_shm=True).zmq_handle == of_verl
print(json.dumps([received.get(0), received.get(1), plain]))
os._exit(0)
"""  # noqa: E501


def test_each_training_receives_its_own_weights(tmp_path):
    variables = os.environ | {"VERL_PLATFORM": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path)],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [[0.0, 0.0], [1.0, 1.0], True], done.stderr[
        -2000:
    ]
