"""Train with ExGRPO: ``python -m exgrpo.main_mix_ppo key=value ...`` (Hydra overrides; ``--cfg
job`` only prints).

The configuration is verl's own plus the ``trainer.*`` keys of docs/keys.md. Errors in it are
reported in one line before Ray starts. ``stack=cpu``, of the package verl-cpu, runs the same
program on a CPU.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from exgrpo.console import in_one_line, phase
from exgrpo.on_verl.stopping import Stopping
from exgrpo.on_verl.task_runner import Lost, MixTaskRunner, OnThisNode
from exgrpo.preflight import machine
from exgrpo.preflight.checks import check, refusals
from exgrpo.preflight.unknown_keys import explain

# of Ray's error after 30 s, which no setting changes
NODE_TOO_SLOW = "node timed out during startup"
CONFIG = "pkg://exgrpo.config"


def main() -> None:
    """Compose the configuration of the command line, then :func:`run`."""
    on_cpu = any(argument.startswith("stack=cpu") for argument in sys.argv[1:])
    if on_cpu and find_spec("verl_cpu") is None:
        sys.exit(
            "exgrpo: stack=cpu needs the package verl-cpu: pip install --no-deps packages/verl-cpu"
        )
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra's errors then come here
    try:
        run()
    except HydraException as error:
        overrides = [each for each in sys.argv[1:] if "=" in each and not each.startswith("-")]
        with refusals():
            raise ValueError("\n".join(explain(error, overrides, _compose))) from error


def _compose(overrides: list[str]) -> DictConfig:
    with hydra.initialize_config_module(CONFIG.removeprefix("pkg://"), version_base=None):
        return hydra.compose("exgrpo_trainer", overrides)


@hydra.main(config_path=CONFIG, config_name="exgrpo_trainer", version_base=None)
def run(config: DictConfig) -> None:
    """Check the configuration, then start verl."""
    with in_one_line("exgrpo", "the same command continues from the last checkpoint, if any"):
        with refusals():
            with phase("checking settings, model and data"):
                check(config)
            verify_for_verl(config)
        alone = machine.starts_ray(config, os.environ) and "RAY_TMPDIR" not in os.environ
        with own_temporary_folder() if alone else contextlib.nullcontext():
            train(config)


def verify_for_verl(config: DictConfig) -> None:
    """verl's own checks, those of its rollout and its reward included; ValueError in one line."""
    with phase("loading verl"):
        from verl.trainer.ppo.reward import resolve_reward_manager_cls
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import omega_conf_to_dataclass, validate_config

    try:
        ref, critic = need_reference_policy(config), need_critic(config)
        validate_config(config, use_reference_policy=ref, use_critic=critic)
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        resolve_reward_manager_cls(config)
    except Exception as error:  # assertions and errors of any kind
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"verl refuses the configuration: {why}") from error


@contextlib.contextmanager
def own_temporary_folder() -> Iterator[None]:
    """Within it temporary files have a folder that goes with it: vLLM leaves sockets, verl locks.

    Ray's logs, and what torch compiles for the next run too, stay where they would be.
    """
    usual = tempfile.gettempdir()
    os.environ.setdefault("RAY_TMPDIR", usual)
    with contextlib.suppress(KeyError, OSError):  # a user without a name
        compiled = f"{usual}/torchinductor_{getpass.getuser()}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", compiled)
    with tempfile.TemporaryDirectory(prefix="xg-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield
        finally:
            os.environ["TMPDIR"] = tempfile.tempdir = usual


def train(config: DictConfig) -> None:
    """Run verl's own driver, with our task runner and trainer."""
    import ray
    from ray.exceptions import RayActorError, RayTaskError
    from verl.trainer.main_ppo import run_ppo

    starting, stopping = contextlib.ExitStack(), Stopping()

    def verify_ray() -> None:
        starting.close()
        stopping.listen()
        with refusals():
            machine.verify_cpus(config, ray.cluster_resources().get("CPU", 0))

    # no CPU: on a cluster the node of the command may have none to give
    runner = OnThisNode(ray.remote(num_cpus=0)(MixTaskRunner), verify_ray, str(stopping.folder))
    with stopping.ends():
        stopping.listen()
        for last in (False, False, True):
            try:
                starting.enter_context(phase("starting Ray"))
                return run_ppo(config, task_runner_class=runner)
            except Lost as lost:
                sys.exit(f"exgrpo: {getattr(lost, 'cause', lost)}")  # Ray wraps it
            except RayActorError as error:
                if isinstance(error, RayTaskError):  # it was met by the runner
                    raise
                from exgrpo.on_verl.watch import saved

                rest = saved(Path(config.trainer.default_local_dir))
                sys.exit(f"exgrpo: the trainer's process has died. {rest}")
            except Exception as error:
                starting.close()
                if last or NODE_TOO_SLOW not in str(error):
                    raise
                print(
                    "exgrpo: Ray did not start within its 30 s; the machine is busy, so it is "
                    "started again",
                    flush=True,
                )


if __name__ == "__main__":
    main()
