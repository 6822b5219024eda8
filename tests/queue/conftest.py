"""A real TransferQueue, one for all tests of the folder, and a partition of it for each test."""

import os

import pytest
import ray
import transfer_queue as tq
from omegaconf import OmegaConf

QUEUE = {
    "enable": True,
    "metrics": {"enabled": False, "port": 0},
    "backend": {
        "storage_backend": "SimpleStorage",
        "SimpleStorage": {"total_storage_size": 1000, "num_data_storage_units": 1},
    },
}


@pytest.fixture(scope="session", autouse=True)
def queue():
    # Ray's own is 15: on a busy machine such a process may not answer for seconds
    os.environ.update({"RAY_worker_niceness": "0"})
    # its workers' lines would stand in what a later test of this process reads from the standard
    # error
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    tq.init(OmegaConf.create(QUEUE))
    yield
    tq.close()
    ray.shutdown()


@pytest.fixture
def partition(request):
    name = request.node.name
    yield name
    listed = tq.kv_list(name) or {}
    if listed.get(name):
        tq.kv_clear(keys=list(listed[name]), partition_id=name)


@pytest.fixture
def training_queue():
    """verl's partition for training, empty before and after."""
    yield "train"
    if keys := list((tq.kv_list("train") or {}).get("train", {})):
        tq.kv_clear(keys=keys, partition_id="train")
