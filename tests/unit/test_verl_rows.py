"""What verl 0.9.1 puts into its queue and its checkpoints and reads from there: what ours must be
like.
"""

import asyncio
import inspect
import re
from types import SimpleNamespace

import pytest
import torch
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.workers.utils.padding import response_from_nested

from exgrpo.experience.trajectory import Trajectory
from exgrpo.on_verl import checkpoints, old_checkpoints
from exgrpo.on_verl.complete import replayed_row, replayed_tag, sequence_fields, stored_row
from exgrpo.on_verl.queue import of_response, split_key

TENSORS = (
    "prompts",
    "responses",
    "response_mask",
    "input_ids",
    "position_ids",
    "rm_scores",
    "rollout_log_probs",
)
UID, PROMPT, RESPONSE, LOG_PROBS = "0000007q00003", [5, 6, 7], [8, 9], [-0.5, -0.25]


def source(function):
    return inspect.getsource(inspect.unwrap(function))


@pytest.fixture
def written(monkeypatch):
    """Arguments of the write with which verl's agent loop hands over one rollout, the second of its
    prompt.
    """
    calls = []

    async def put(**arguments):
        calls.append(arguments)

    async def nothing(*args, **kwargs):
        pass

    monkeypatch.setattr(agent_loop_tq, "tq", SimpleNamespace(async_kv_batch_put=put))
    worker = object.__new__(agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class)
    worker.processor, worker._compute_score, worker._compute_teacher_logprobs = (
        None,
        nothing,
        nothing,
    )
    output = AgentLoopOutput(
        prompt_ids=PROMPT, response_ids=RESPONSE, response_mask=[1, 1], response_logprobs=LOG_PROBS, reward_score=1.0,  # noqa: E501
        metrics={}, extra_fields={"min_global_steps": 4, "max_global_steps": 4, "reward_extra_info": {"rule": "x"}},  # noqa: E501
    )  # fmt: skip
    given = {"uid": UID, "session_id": 1, "question_id": "q", "global_steps": 5}
    asyncio.run(worker._agent_loop_postprocess(output, False, **given))
    (call,) = calls
    return call


def test_a_rollouts_key_is_uid_session_and_output(written):
    assert written["keys"] == [f"{UID}_1_0"] and split_key(written["keys"][0]) == (UID, 1, 0)
    assert written["partition_id"] == "train"


def test_a_row_has_the_fields_we_read_and_write(written):
    expected = [
        "prompts",
        "responses",
        "response_mask",
        "loss_mask",
        "input_ids",
        "position_ids",
        "rm_scores",
    ]
    expected += ["rollout_log_probs", "uid", "session_id", "question_id"]
    assert set(expected) <= set(written["fields"].keys())
    assert {
        "status",
        "prompt_len",
        "response_len",
        "seq_len",
        "min_global_steps",
        "max_global_steps",
    } <= set(written["tags"][0])


def test_a_replayed_row_is_what_verl_would_have_written_of_that_rollout(written):
    row, tag = written["fields"][0], written["tags"][0]
    trajectory = Trajectory(RESPONSE, LOG_PROBS, step=5)
    for name, value in sequence_fields(torch.tensor(PROMPT), trajectory).items():
        assert torch.equal(value, row[name]) and value.dtype == row[name].dtype, name
    ours = replayed_row(row, trajectory, session=1)
    assert set(ours) == set(row.keys())
    for name in ("rm_scores", "rollout_log_probs"):
        assert torch.equal(ours[name], row[name]) and ours[name].dtype == row[name].dtype, name
    assert replayed_tag(tag, trajectory) == {**tag, "is_replayed": True}


def test_a_row_of_a_past_group_has_the_columns_that_verl_writes_and_the_data_of_its_question(
    written,
):
    row, tag = written["fields"][0], written["tags"][0]
    rollout, of_data = (
        Trajectory([3, 4, 5], [-1.0, -2.0, -3.0], step=2, reward=0.5),
        {"question_id": "p", "more": 1},
    )
    ours = stored_row(row, of_data, "uid of it", rollout, 0, torch.tensor([1, 2]))
    assert set(ours) == set(row.keys()) and all(
        ours[name].dtype == row[name].dtype for name in TENSORS
    )
    assert row["extra_fields"]["reward_extra_info"] == {"rule": "x"} and ours["extra_fields"] == {
        "min_global_steps": 4,
        "max_global_steps": 4,
    }
    assert (ours["uid"], ours["session_id"], ours["question_id"]) == ("uid of it", 0, "p")
    assert ours["input_ids"].tolist() == [1, 2, 3, 4, 5] and ours["rm_scores"].tolist() == [
        0,
        0,
        0.5,
    ]
    lengths = {
        "prompt_len": 2,
        "response_len": 3,
        "seq_len": 5,
        "min_global_steps": 1,
        "max_global_steps": 1,
    }
    assert replayed_tag(tag, rollout, 2) == {**tag, **lengths, "is_replayed": True}


def test_a_step_waits_for_the_prompts_that_it_is_told_of():
    lines = source(PPOTrainer._step_once)
    assert "batch_size=sample_batch_size" in lines and lines.count("sample_batch_size") == 2, (
        "ExperienceMixin._step_once"
    )


def test_padding_is_marked_in_the_tag(written):
    _, tag = construct_minimal_padding_template(written["fields"][0], written["tags"][0], 0)
    assert tag["is_padding"] is True


def test_a_batch_is_reordered_in_place():
    batch = KVBatchMeta(keys=["a", "b"], tags=[{"n": 1}, {"n": 2}], partition_id="train")
    batch.reorder([1, 0])
    assert (batch.keys, batch.tags, len(batch)) == (["b", "a"], [{"n": 2}, {"n": 1}], 2)


def test_the_number_of_rollouts_of_a_prompt_is_a_column():
    run = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class._run_prompt
    assert 'prompt.pop("__rollout_n__", config.n' in source(run), (
        "a replayed question would get K rollouts, not K-1"
    )
    assert "session_id=i" in source(run), "agent_loop.py seeds by session_id"


def test_a_uid_ends_at_the_keys_first_underscore():
    materialize = source(ReplayBuffer._materialize_batch)
    assert 'key.split("_")[0]' in materialize, (
        "the collate function's uids have no underscore for this line's sake"
    )


def test_the_pool_is_asked_where_verl_computes_log_probs():
    lines = source(PPOTrainer._compute_old_log_prob)
    for asked in (
        '"calculate_entropy": True',
        '"compute_loss": False',
        '"temperature"',
        '"entropy", "log_probs"',
    ):
        assert asked in lines, f"complete.py asks the actor for the same: {asked}"
    assert 'select("old_log_probs", "entropy")' in lines, (
        "observe.scored_rows reads them, correct.current_log_probs log_probs"
    )
    order = re.findall(r"batch = self\.(_\w+)\(batch", source(PPOTrainer._step_once))
    assert [
        name
        for name in order
        if name in ("_balance_batch", "_compute_old_log_prob", "_compute_advantage")
    ] == [
        "_balance_batch",
        "_compute_old_log_prob",
        "_compute_advantage",
    ]


def test_a_response_is_cut_out_of_the_actors_output_where_verl_cuts():
    entropy, log_probs = (
        torch.arange(7.0),
        -torch.arange(7.0),
    )  # of three tokens of prompt and four of response
    for row in (entropy, log_probs):
        masks = torch.nested.as_nested_tensor([torch.ones(4), torch.ones(2)], layout=torch.jagged)
        rows = torch.nested.as_nested_tensor([row, torch.zeros(5)], layout=torch.jagged)
        assert of_response(row, 4).tolist() == response_from_nested(rows, masks)[0].tolist()


def test_the_advantage_is_of_a_rows_reward_among_those_of_its_uid():
    fields = re.search(r"fields = \[(.*?)\]", source(PPOTrainer._compute_advantage)).group(1)
    assert {'"uid"', '"rm_scores"', '"response_mask"'} <= set(fields.split(", "))


def test_the_data_parallel_size_is_found_as_verl_finds_it():
    from verl.single_controller.base.worker import Worker
    from verl.single_controller.base.worker_group import WorkerGroup
    from verl.workers.engine_workers import ActorRolloutRefWorker

    assert "self._dispatch_info = {}" in source(WorkerGroup.__init__)
    assert list(inspect.signature(Worker._query_dispatch_info).parameters)[:2] == [
        "self",
        "mesh_name",
    ]
    assert list(inspect.signature(ActorRolloutRefWorker.compute_log_prob).parameters)[:2] == [
        "self",
        "data",
    ]
    lines = source(PPOTrainer._balance_batch)
    for line in ('role, worker_group = "actor", self.actor_rollout_wg', "max(dp_rank_mapping) + 1"):
        assert line in lines, f"complete.data_parallel_size does the same: {line}"


def test_any_mode_but_sync_is_an_asynchronous_one_and_the_buffer_is_built_first():
    asked = re.findall(r"self\.trainer_mode (?:==|!=) (\S+?)[:)\s]", source(PPOTrainer))
    assert set(asked) == {'"sync"'}, (
        "_build_replay_buffer sets trainer_mode to verl's name for these questions"
    )
    start = source(PPOTrainer.__init__)
    assert start.index("self.trainer_mode = ") < start.index("self._build_replay_buffer()")


def test_verl_finds_the_checkpoint_our_marker_names(tmp_path):
    from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

    checkpoints.step_folder(tmp_path, 7).mkdir()
    (tmp_path / checkpoints.MARKER).write_text("7")
    assert find_latest_ckpt_path(str(tmp_path)) == str(checkpoints.step_folder(tmp_path, 7))


def test_a_save_writes_the_actor_then_the_loader_then_the_marker():
    lines = source(PPOTrainer._save_checkpoint)
    names = [f'"{name}"' for name in ("actor", "data.pt", checkpoints.QUEUE, checkpoints.MARKER)]
    assert all(name in lines for name in names), names
    assert sorted(names, key=lines.index) == names, (
        "what a kill leaves is judged by this order (checkpoints.py)"
    )
    assert 'f"global_step_{self.global_steps}"' in lines


def test_the_files_of_optimizer_states_have_the_name_that_is_deleted(tmp_path):
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    lines = source(FSDPCheckpointManager.save_checkpoint)
    for part in ("model", "optim"):  # preflight counts the ranks of the first
        assert f'f"{part}_world_size_{{self.world_size}}_rank_{{self.rank}}.pt"' in lines
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "optim_world_size_2_rank_1.pt").touch()
    assert len(list(tmp_path.glob(old_checkpoints.FILES))) == 1


def test_a_fetched_batch_is_of_the_loader_whose_position_is_saved():
    lines = source(PPOTrainer._fetch_one_gen_batch)
    for line in ("self.train_dataloader_it = iter(self.train_dataloader)", "except StopIteration"):
        assert line in lines, (
            f"ExperienceMixPPOTrainer._next_question sees a new epoch by it: {line}"
        )
