"""Every option of a run, one docstring each: meaning, unit, range.

Owns the sections of a configuration file; an algorithm's own options are in `algorithms.py`.
Imports neither torch nor gymnasium, so that a typing mistake is reported at once.
Read through `load.py`; nothing changes a value afterwards.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rltrain.config.algorithms import AlgoSection, DqnConfig, Td3Config, Unit

# Upper bounds are far above any use: they turn a slip of the keyboard into a message instead of a machine at a stand.
Count = Annotated[int, Field(ge=1, le=1_000_000)]
EnvSteps = Annotated[int, Field(ge=1, le=10**15)]
Width = Annotated[int, Field(ge=1, le=65_536)]
Rows = Annotated[int, Field(ge=1, le=10**8)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Envs = Annotated[int, Field(ge=1, le=65_536)]
Frames = Annotated[int, Field(ge=1, le=1024)]
Timeout = Annotated[float, Field(gt=0, le=1_000_000)]
Text = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]
Auto = Literal["auto"]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$")]


class Section(BaseModel):
    """Common rules of all sections: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True,
        ser_json_inf_nan="constants",  # those in `kwargs` would reach the workers as null
    )


class RunSection(Section):
    """What the run is called, how long it trains and when it stops."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)] = "run"
    """Name of the run; the folder is `<dir>/<name>-<time>`. Letters, digits, `_`, `.`, `-`."""
    dir: Text = "runs"
    """Folder that holds the run folders; the system accepts no NUL in it."""
    code_dir: Text | Auto = "auto"
    """Folder in which `module:factory` of your own is looked for, before Python's own path. `auto`: the folder in which
    the run is started; the run remembers it for `eval` and `--resume`."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of everything: weights, action noise, environments, minibatch order."""
    total_env_steps: EnvSteps = 1_000_000
    """Training ends after this many env steps in all, resumed parts included. Unit: env steps."""
    time_limit_s: Timeout | None = None
    """Training also ends after this long, counted from the end of the first update: what comes before takes nothing of
    it, unless it takes longer than `supervision.boot_timeout_s`. A resumed part counts for itself. Unit: seconds."""
    target_return: float | None = None
    """Training also ends once the mean return of the last `target_window` episodes reaches this. Unit: reward."""
    target_window: Count = 100
    """Episodes in the running mean of return and length that is reported and compared. Unit: episodes."""


class EnvSection(Section):
    """The environment and its preprocessing."""

    id: Text
    """A Gymnasium id (`CartPole-v1`), a name of `registry.py`, or `module:factory` of your own."""
    kwargs: dict[str, Any] = {}
    """Keyword arguments for the environment's constructor."""
    vectorization: Literal["auto", "native", "single"] = "auto"
    """`native`: the environment's own vector implementation; `single`: many single environments stepped in one
    process; `auto`: native where there is one and it keeps the preprocessing asked for, else single."""
    max_episode_steps: EnvSteps | None = None
    """Cut episodes (a truncation) after this many steps; none keeps the environment's own limit. Unit: env steps."""
    frame_stack: Frames = 1
    """Number of most recent observations stacked on a new first axis; 1 leaves the observation as it is."""
    resize: tuple[Width, Width] | None = None
    """Height and width in pixels to which image observations are resized."""
    grayscale: bool = False
    """Turn RGB image observations into one gray channel."""
    normalize_obs: bool = False
    """Scale float observations by their running mean and standard deviation, clipped to +-10; the statistics are
    part of the model, are saved with it, and do not move in evaluation."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return; reported returns stay raw."""
    reward_clip: Annotated[float, Field(gt=0)] | None = None
    """Clip rewards to [-x, x] for learning, before normalisation; reported returns stay raw."""


class ActorsSection(Section):
    """How many environments there are and how they are spread over processes."""

    num_actors: Annotated[int, Field(ge=1, le=1024)] | Auto = "auto"
    """Actor processes. `auto`: usable cores minus one, at least one, at most 32."""
    groups_per_actor: Annotated[int, Field(ge=1, le=64)] = 2
    """Env groups in each actor; one is stepped while the others wait for their actions. Two or more overlap."""
    envs_per_group: Envs = 8
    """Environments in one group, stepped together; the rows of one inference request."""
    env_threads: Threads | Auto = "auto"
    """Threads that step a group of Atari games. `auto`: each actor's share of the cores that the learner leaves."""


class PipelineSection(Section):
    """How the stages are connected and when each may run ahead."""

    schedule: Literal["sync", "overlap", "async"] = "overlap"
    """`sync`: collect, train, publish, repeat. `overlap`: collect with the weights one version back while training;
    reproducible. `async`: nobody waits; lag is bounded by `max_policy_lag`; not reproducible."""
    inference: Literal["server", "local"] = "server"
    """`server`: one process answers all actors in dynamic batches. `local`: each actor runs the policy itself, on the
    CPU."""
    inference_device: Device = "auto"
    """Where the inference server runs the policy: `auto` (the learner's device), `cpu`, `cuda`, or `cuda:N`."""
    cuda_graphs: bool = True
    """CUDA only: the inference server launches each batch as one graph instead of kernel by kernel. A network that
    cannot be captured (its code looks at values on the device) runs without, and a warning says so."""
    pin_cores: bool = False
    """Keep the learner, the inference server and the actors on cores of their own, the learner's threads first; with
    fewer cores than processes they share them in turn. A second hyperthread of a core is given out after one of each
    core. The evaluator may run on any. Needs Linux."""
    fragment_length: Annotated[int, Field(ge=2, le=1_000_000)] = 32
    """Env steps per env in one fragment (T), at least 2. Unit: env steps."""
    num_slots: Rows | Auto = "auto"
    """Slots of the trajectory ring. `auto`: three for each env group."""
    when_full: Literal["block", "overwrite_oldest"] = "block"
    """What an actor does when no slot is free; `overwrite_oldest` counts what it dropped and needs `async`."""
    max_policy_lag: Count = 8
    """In `async`, fragments older than this when consumed are dropped and counted. Unit: policy versions."""
    max_batch_size: Rows | Auto = "auto"
    """Largest number of rows in one inference batch. `auto`: the rows of all groups together."""
    preferred_batch_sizes: tuple[Rows, ...] = ()
    """Batch sizes in rows that fire at once when reached, as in Triton; empty means none."""
    max_queue_delay_us: Annotated[int, Field(ge=0, le=1_000_000)] | Auto = "auto"
    """Longest wait of the oldest request for a fuller batch; 0 fires as soon as the device is free. `auto`: 5000 where
    `adaptive` shortens it, else 0. Unit: microseconds."""
    adaptive: bool | Auto = "auto"
    """Shorten the wait where the measured arrival rate says that waiting does not pay; `async` only. `auto`: true in
    `async` with a server, unless `max_queue_delay_us` is 0."""


class ModelSection(Section):
    """The network."""

    kind: Text = "auto"
    """`mlp`, `nature_cnn`, `impala_cnn`, `auto` (a CNN for images, an MLP for the rest, both for Dict), or
    `module:factory` of your own."""
    hidden_sizes: tuple[Width, ...] = (64, 64)
    """Widths of the hidden layers after the encoder."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Activation between the hidden layers."""
    separate_critic: bool | Auto = "auto"
    """Whether actor and critic have networks of their own. `auto`: separate for vectors, shared for images."""
    action_distribution: Literal["auto", "gaussian", "squashed_gaussian"] = "auto"
    """For Box actions: `gaussian` samples are clipped to the bounds on their way to the env; `squashed_gaussian`
    goes through tanh and needs finite bounds. `auto`: gaussian."""
    initial_log_std: Annotated[float, Field(ge=-10, le=3)] = 0.0
    """Start of the Gaussian's log standard deviation, in units of the half-width where bounds are finite."""
    kwargs: dict[str, Any] = {}
    """Keyword arguments for a `module:factory` model."""


class LearnerSection(Section):
    """The process that trains."""

    device: Device = "auto"
    """`auto` (the first CUDA device, else CPU), `cpu`, `cuda`, or `cuda:N`; also the inference server's, unless
    `pipeline.inference_device` names another."""
    num_threads: Threads | Auto = "auto"
    """Threads of the learner; on a CPU, large minibatches of ppo and appo are shared out among them. `auto`: usable
    cores divided by the processes that compute, at least 1."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of forward and backward passes; weights and targets stay float32."""
    compile: bool = False
    """Compile the model with `torch.compile`; the first update then takes tens of seconds."""
    min_batch_fragments: Rows | Auto = "auto"
    """`async`: fewest fragments in a batch. `auto`: half of the env groups, at least one."""
    max_batch_fragments: Rows | Auto = "auto"
    """`async`: most fragments in a batch. `auto`: one for each env group."""
    max_bad_updates: Count = 5
    """Consecutive updates with a non-finite loss or gradient that are skipped before the run stops."""


class ReplaySection(Section):
    """The replay of the algorithms that learn from it (dqn, sac, td3)."""

    capacity: Rows = 1_000_000
    """Rows kept; then the oldest make room. The row behind an episode's end is no transition, and with
    `env.frame_stack` each episode also takes the frames of its first stack, so short episodes leave fewer. Unit: env
    steps."""
    learning_starts: EnvSteps = 1_000
    """Env steps in the replay before the first update, also where a resumed run begins with an empty one. A new run
    acts at random until then. Unit: env steps."""
    batch_size: Rows = 256
    """Transitions of one update."""
    updates_per_env_step: Annotated[float, Field(gt=0, le=1_000)] | Auto = "auto"
    """Replay ratio: updates for each env step collected. `auto`: 0.25 for dqn, 1 for the others."""
    ahead_env_steps: Annotated[int, Field(ge=0, le=10**9)] = 0
    """`async`: how far updates may run ahead of collection, instead of waiting for it. Unit: env steps' worth."""
    n_step: Annotated[int, Field(ge=1, le=64)] = 1
    """Rewards summed up before the value of the observation behind them is used. Unit: env steps."""
    prioritized: bool = False
    """Draw transitions in proportion to a power of their last error instead of uniformly."""
    priority_alpha: Unit = 0.6
    """Power of the priorities; 0 is uniform."""
    priority_beta: Unit = 0.4
    """Exponent of the importance weights at the start; 0 corrects nothing, 1 all."""
    priority_beta_end: Unit = 1.0
    """Exponent at `run.total_env_steps`, reached linearly."""
    priority_eps: Annotated[float, Field(gt=0)] = 1e-6
    """Added to the error, so that no transition is never drawn again. Unit: reward."""
    normalize_weights: Literal["batch", "buffer"] = "batch"
    """Importance weights are divided by the largest of the `batch`, or by the largest of the whole `buffer`."""
    prefetch: bool = True
    """Draw and copy the next batch on a thread of its own while an update runs."""
    save: bool = False
    """Write the replay into each checkpoint. Without, a resumed run fills it again before it learns on."""
    in_file: bool = False
    """Keep it in a file on the disk of the run folder, mapped into memory, instead of in memory. The file has no name
    there, so that nothing is left of it when the run ends."""
    allow_overcommit: bool = False
    """Start although the replay is larger than the memory that is free."""


class EvalSection(Section):
    """Evaluation during training, in a process of its own."""

    every_env_steps: EnvSteps | None = None
    """Distance between evaluations; none means no evaluation. Unit: env steps."""
    episodes: Count = 10
    """Episodes in one evaluation."""
    num_envs: Envs = 4
    """Environments stepped side by side in an evaluation."""
    stochastic: bool = False
    """Sample actions instead of taking the most likely one."""


class CheckpointSection(Section):
    """When the state is saved and how many states are kept."""

    every_env_steps: EnvSteps | None = None
    """Distance between checkpoints. Unit: env steps."""
    every_s: Timeout | Auto | None = "auto"
    """Longest time without a checkpoint: what a death of the learner or of the machine may cost. `auto`: 120, or none
    where `checkpoint.every_env_steps` is set, as those by time would push the others out of `checkpoint.keep`. With
    none for both only the end, Ctrl-C and SIGTERM save. Unit: seconds."""
    keep: Count = 3
    """Newest checkpoints kept, whatever they were written for."""
    keep_best: bool = True
    """Also keep the checkpoint with the best mean return."""


class LogSection(Section):
    """What is written while training."""

    every_env_steps: EnvSteps | Auto = "auto"
    """Distance between points of the learner's curves. `auto`: a two-hundredth of `run.total_env_steps`.
    Unit: env steps."""
    tensorboard: bool = True
    """Write TensorBoard files."""
    max_log_mib: Count = 32
    """Largest size of each process's log file; the older half is dropped beyond it. Unit: MiB."""


class SupervisionSection(Section):
    """How long silence is tolerated and how often a process is restarted."""

    boot_timeout_s: Timeout = 120.0
    """Longest time from start to readiness of a process. Unit: seconds."""
    heartbeat_timeout_s: Timeout = 60.0
    """Longest silence of a running process before it is killed; one env step, one batch's update and one checkpoint
    may not take longer each. Unit: seconds."""
    max_restarts: Annotated[int, Field(ge=0, le=1_000_000)] = 3
    """Restarts of each process, back to back, before the run stops; after ten healthy minutes the count begins anew."""
    restart_backoff_s: Annotated[float, Field(ge=0, le=1_000_000)] = 0.5
    """Wait before the restart of a process that died within 10 s of its last restart, doubled for each further such
    death, at most 30; any other restart comes at once. Unit: seconds."""
    shutdown_grace_s: Timeout = 10.0
    """Time that processes get to finish after a stop before they are killed; one that had been silent for half of it
    already is not waited for. Unit: seconds."""


class Config(Section):
    """A whole run."""

    run: RunSection = RunSection()
    env: EnvSection
    actors: ActorsSection = ActorsSection()
    pipeline: PipelineSection = PipelineSection()
    model: ModelSection = ModelSection()
    algo: AlgoSection = AlgoSection()
    learner: LearnerSection = LearnerSection()
    replay: ReplaySection = ReplaySection()
    eval: EvalSection = EvalSection()
    checkpoint: CheckpointSection = CheckpointSection()
    log: LogSection = LogSection()
    supervision: SupervisionSection = SupervisionSection()

    def server_device(self) -> str:
        """Return where the inference server runs the policy: `pipeline.inference_device`, or else the learner's."""
        chosen = self.pipeline.inference_device
        return self.learner.device if chosen == "auto" else chosen

    def model_settings(self) -> dict[str, Any]:
        """Return what `build_model` needs: the `model` section and what the algorithm asks of its policy, JSON-able.

        `policy` is the kind of policy. Besides, `q_values` has `dueling` and `ladder_envs`, the envs that a ladder of
        random action probabilities goes over, or None; `deterministic` has `exploration_noise`.
        """
        algo = self.algo.chosen
        settings = {**self.model.model_dump(mode="json"), "policy": algo.policy}
        if isinstance(algo, DqnConfig):
            settings |= {"dueling": algo.dueling, "ladder_envs": self._num_envs() if algo.epsilon_ladder else None}
        elif isinstance(algo, Td3Config):
            settings["exploration_noise"] = algo.exploration_noise
        return settings

    def _num_envs(self) -> int:
        actors = self.actors
        assert actors.num_actors != "auto", "the configuration is resolved"
        return actors.num_actors * actors.groups_per_actor * actors.envs_per_group
