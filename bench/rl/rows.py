"""The rows of the suite: which programs are measured against each other, with which settings, and what we aim at."""

from __future__ import annotations

from typing import Any

from suite import Cell, Row

#: stable-baselines3's zoo, hyperparams/ppo.yml; ours have the same meaning.
ZOO_CARTPOLE = {"envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20,
                "ent_coef": 0.0, "learning_rate": "lin_0.001", "clip_range": "lin_0.2"}  # fmt: skip
ZOO_ACROBOT = {"normalize": True, "envs": 16, "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4,
               "ent_coef": 0.0}  # fmt: skip
ZOO_LUNAR = {"envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4,
             "ent_coef": 0.01}  # fmt: skip
ZOO_PENDULUM = {"envs": 4, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0,
                "learning_rate": 0.001, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4}  # fmt: skip
#: What Skate's PPO does by itself and the zoo's settings leave out.
PLAIN = {"normalise": False, "scale_rewards": False}
SAME_CARTPOLE = {"envs": 8, "horizon": 32, "epochs": 20, "minibatch": 256, "gamma": 0.98, "lam": 0.8,
                 "entropy": 0.0}  # fmt: skip
SAME_LUNAR = {"envs": 16, "horizon": 1024, "epochs": 4, "minibatch": 64, "gamma": 0.999, "lam": 0.98, "entropy": 0.01,
              "learning_rate": 3e-4}  # fmt: skip
#: Ours to a score: more environments and larger steps, since simulating is cheap here.
OUR_CARTPOLE = {"envs": 8, "horizon": 64, "epochs": 10, "minibatch": 128, "gamma": 0.98, "lam": 0.9,
                "learning_rate": 2e-3}  # fmt: skip
OUR_CATCH = {"horizon": 32, "activation": "relu"}
OUR_ACROBOT: dict[str, Any] = {}
OUR_LUNAR: dict[str, Any] = {}
OUR_PENDULUM: dict[str, Any] = {"gamma": 0.9, "minibatch": 64, "normalise": False, "entropy": 0.0}

#: What is different in a run that only shows that the programs work (`--smoke`).
FEW: dict[str, Any] = {"smoke": {"steps": 4_000}}
SHORT: dict[str, Any] = {"smoke": {"scale": 1}}
#: An iteration is the least that PPO does.
ONCE: dict[str, Any] = {"smoke": {"steps": 1}}
#: The first evaluation reaches any score.
SOON: dict[str, Any] = {"smoke": {"at": -1e9}}


def _rollout(
    name: str, env: str, steps: int, sb3_steps: int, aim_sb3: float | None, envs: int, vector: bool = True
) -> Row:
    sb3: dict[str, Any] = {"env": env, "steps": sb3_steps, "envs": envs}
    sb3_processes = {**sb3, "processes": True}
    cells = {
        "skate": Cell("skate_side", "rollout", {"env": env, "steps": steps, "envs": envs, "vector": vector}, **FEW),
        "sb3 dummy": Cell("sb3_side", "rollout", sb3, "sb3", **FEW),
        "sb3 subproc": Cell("sb3_side", "rollout", sb3_processes, "sb3", runs=3 if envs <= 16 else 0, **FEW),
        "rllib": Cell("rllib_side", "rollout", sb3, "rllib", runs=1, **FEW),
    }
    if not vector or "CartPole" not in env:
        # What the environment allows: nothing that steps it can be faster.
        cells["two bare loops"] = Cell("bare", "loops", {"env": env, "steps": steps}, **FEW)
    aims = {} if aim_sb3 is None else {"sb3 dummy": aim_sb3, "sb3 subproc": aim_sb3, "rllib": 8.0}
    how = "" if vector or "CartPole" not in env else ", one by one"
    text = f"rollouts of {env}{how} with a policy of 64 x 64, {envs} environments, steps/s"
    return Row(name, text, cells, aims=aims)


def _envpool(name: str, env: str, theirs: str, envs: int, steps: int, their_steps: int) -> Row:
    cells = {
        "skate": Cell("skate_side", "random", {"env": env, "steps": steps, "envs": envs}, **FEW),
        "envpool": Cell("bare", "envpool", {"env": theirs, "steps": their_steps, "envs": envs}, "envpool", **FEW),
    }
    return Row(name, f"{env} without a policy, {envs} environments, steps/s; EnvPool's are C++", cells)


def _score(
    name: str, env: str, at: float, steps: float, ours: dict[str, Any], theirs: dict[str, Any], seeds: int
) -> Row:
    task = {"env": env, "steps": steps, "at": at}
    cells = {
        "skate": Cell("skate_side", "score", {"algorithm": "ppo", **task, **ours}, **SOON),
        "sb3": Cell("sb3_side", "score", {"algorithm": "ppo", **task, **theirs}, "sb3", **SOON),
    }
    aims = {"sb3": 0.6}
    if name == "score_cartpole":
        cells["rllib"] = Cell("rllib_side", "score", task, "rllib", runs=3, **SOON)
        aims["rllib"] = 1 / 6
    text = f"seconds to a score of {at:g} on {env}, with the start of the process and all imports, {seeds} seeds"
    limit = 5.0 if name == "score_cartpole" else None
    return Row(name, text, cells, "seconds", aims, seeds, True, False, limit)


def _algorithm(algorithm: str, env: str, at: float, steps: float, peer: dict[str, Any] | None, **ours: Any) -> Row:
    task = {"algorithm": algorithm, "env": env, "steps": steps, "at": at}
    cells = {"skate": Cell("skate_side", "score", {**task, **ours}, **SOON)}
    if peer is not None:
        cells["sb3"] = Cell("sb3_side", "score", {**task, **peer}, "sb3", **SOON)
    name = f"score_{algorithm}" if env != "catch" else f"catch_{algorithm}"
    text = f"seconds to a score of {at:g} with {algorithm} on {env} within {steps:,.0f} steps, 5 seeds"
    return Row(name, text, cells, "seconds", {}, 5, True, False)


def _curve(algorithm: str, env: str, steps: float, every: float, seeds: int = 5, **settings: Any) -> Row:
    """A learning curve: the score each time `every` steps were made, with the seeds that `plots.py` draws."""
    name = f"curve_{algorithm}_{env.partition('-')[0].lower()}"
    task = {"algorithm": algorithm, "env": env, "steps": steps, "every": every, **settings}
    text = f"score of {algorithm} on {env} after {steps:,.0f} steps, {seeds} seeds"
    cells = {"skate": Cell("skate_side", "curve", task, smoke={"steps": 2_000, "every": 1_000})}
    return Row(name, text, cells, "score", {}, seeds, True)


def _es(name: str, env: str, aim: float | None, runs: int = 3, **task: Any) -> Row:
    tiny: dict[str, Any] = {"smoke": {"episodes": 20, "generations": 1}}
    return Row(
        name,
        f"evolution strategies on {env}, a policy of 64 x 64, steps/s",
        {
            "skate": Cell("skate_side", "es", {"env": env, **task}, **tiny),
            "pool": Cell("bare", "es", {"env": env, **task}, **tiny),
            "evotorch": Cell("evotorch_side", "es", {"env": env, **task}, "evotorch", runs=2, **tiny),
        },
        aims={} if aim is None else {"evotorch": aim},
        runs=runs,
        own={"busy": 0.95, "driver": -0.03},
    )


def _scaling(name: str, text: str, row: str, peer: str, figure: str, smoke: dict[str, Any], **arguments: Any) -> Row:
    """The same work on one core and on two; the cells of `plots.py`."""
    cells = {
        f"skate, {cores}": Cell("skate_side", row, {**arguments, "cores": cores}, cores=cores, **smoke)
        for cores in (1, 2)
    }
    if row == "ppo_scaling":
        late = {**arguments, "ordered": False}
        cells |= {
            f"as they finish, {cores}": Cell("skate_side", row, {**late, "cores": cores}, cores=cores, **smoke)
            for cores in (1, 2)
        }
    if peer:
        cells |= {f"mpi, {cores}": Cell("mpi_side", peer, arguments, "mpi", cores=cores, **smoke) for cores in (1, 2)}
    return Row(name, text, cells, figure, runs=2 if row == "es_iteration" else 3)


ROWS = {
    row.name: row
    for row in [
        Row(
            "pendulum",
            "Pendulum without a policy, two lanes, steps/s",
            {
                "skate": Cell("skate_side", "pendulum", **FEW),
                "two bare loops": Cell("bare", "loops", **FEW),
                "async": Cell("bare", "asynchronous", **FEW),
                "sb3 subproc": Cell("sb3_side", "pendulum", environment="sb3", **FEW),
                "rllib": Cell("rllib_side", "pendulum", environment="rllib", runs=1, **FEW),
            },
            aims={"two bare loops": 0.95, "async": 4.0, "sb3 subproc": 4.0, "rllib": 10.0},
        ),
        Row(
            "table_4_equal",
            "simulations of equal length in three rounds of two, steps/s",
            {
                "skate": Cell("skate_side", "simulations", {"equal": True}, **SHORT),
                "mpi": Cell("mpi_side", "simulations", {"equal": True}, "mpi", **SHORT),
            },
            aims={"mpi": 1.0},
        ),
        Row(
            "table_4_unequal",
            "sixty simulations of 1,000 to 100,000 steps; MPI in 30 rounds of two, steps/s",
            {
                "skate": Cell("skate_side", "simulations", {"equal": False}, **SHORT),
                "mpi": Cell("mpi_side", "simulations", {"equal": False}, "mpi", **SHORT),
            },
            aims={"mpi": 1.25},
        ),
        _rollout("rollout_cartpole", "CartPole-v1", 2_000_000, 256_000, 10.0, 128),
        _rollout("rollout_cartpole_16", "CartPole-v1", 400_000, 40_000, None, 16),
        _rollout("rollout_cartpole_loop", "CartPole-v1", 400_000, 40_000, 3.0, 16, vector=False),
        _rollout("rollout_lunar", "LunarLander-v3", 100_000, 20_000, 3.0, 16),
        _rollout("rollout_cheetah", "HalfCheetah-v5", 100_000, 20_000, 3.0, 8),
        _envpool("envpool_cartpole", "CartPole-v1", "CartPole-v1", 128, 4_000_000, 2_000_000),
        _envpool("envpool_lunar", "LunarLander-v3", "LunarLander-v2", 16, 200_000, 1_000_000),
        Row(
            "ppo_cartpole",
            "PPO from end to end on CartPole, the zoo's settings, steps/s",
            {
                "skate": Cell(
                    "skate_side", "ppo", {"env": "CartPole-v1", "lanes": 1, **SAME_CARTPOLE, **PLAIN}, **ONCE
                ),
                "plain loop": Cell("bare", "ppo", {"env": "CartPole-v1", **SAME_CARTPOLE}, **ONCE),
                "sb3": Cell("sb3_side", "ppo", {"env": "CartPole-v1", **ZOO_CARTPOLE}, "sb3", **ONCE),
                "rllib": Cell("rllib_side", "ppo", {"env": "CartPole-v1"}, "rllib", runs=1, **ONCE),
            },
            aims={"plain loop": 1.0, "sb3": 2.0, "rllib": 3.0},
        ),
        Row(
            "ppo_lunar",
            "PPO from end to end on LunarLander, the zoo's settings, steps/s",
            {
                "skate": Cell(
                    "skate_side", "ppo", {"env": "LunarLander-v3", **SAME_LUNAR, **PLAIN, "lanes": 2, "envs": 8}, **ONCE
                ),
                "plain loop": Cell("bare", "ppo", {"env": "LunarLander-v3", **SAME_LUNAR}, **ONCE),
                "sb3": Cell("sb3_side", "ppo", {"env": "LunarLander-v3", **ZOO_LUNAR}, "sb3", **ONCE),
                "rllib": Cell("rllib_side", "ppo", {"env": "LunarLander-v3"}, "rllib", runs=1, **ONCE),
            },
            aims={"plain loop": 1.5, "sb3": 2.0, "rllib": 3.0},
        ),
        _score("score_cartpole", "CartPole-v1", 475, 1e5, OUR_CARTPOLE, ZOO_CARTPOLE, 10),
        _score("score_pendulum", "Pendulum-v1", -200, 3e5, OUR_PENDULUM, ZOO_PENDULUM, 10),
        _score("score_acrobot", "Acrobot-v1", -85, 1e6, OUR_ACROBOT, ZOO_ACROBOT, 3),
        # Evaluations take most of the time here: landers hover until they are cut off.
        _score("score_lunar", "LunarLander-v3", 200, 1e6, OUR_LUNAR, {**ZOO_LUNAR, "within_s": 25}, 3),
        _algorithm("es", "CartPole-v1", 475, 5e6, None),
        _algorithm("impala", "CartPole-v1", 475, 2e6, None),
        _algorithm(
            "dqn",
            "CartPole-v1",
            475,
            1e5,
            {
                "learning_rate": 2.3e-3,
                "batch_size": 64,
                "buffer_size": 100_000,
                "learning_starts": 1000,
                "gamma": 0.99,
                "target_update_interval": 10,
                "train_freq": 256,
                "gradient_steps": 128,
                "exploration_fraction": 0.16,
                "exploration_final_eps": 0.04,
                "hidden": [256, 256],
            },
        ),
        _algorithm("sac", "Pendulum-v1", -170, 2e4, {"learning_rate": 1e-3}),
        _algorithm("ppo", "catch", 0.95, 3e5, None, **OUR_CATCH),
        _algorithm("dqn", "catch", 0.95, 1e5, None),
        _es("es_cartpole", "CartPole-v1", 3.0, episodes=2_000, generations=10),
        _es("es_humanoid", "humanoid", None, runs=1, episodes=1_000, generations=1),
        Row(
            "es_tree",
            "results of episodes of one step that a second of the driver's CPU takes in, with and without the tree",
            {
                name: Cell("skate_side", "absorb", {"tree": tree}, smoke={"directions": 40, "generations": 2})
                for name, tree in (("skate", 2), ("no tree", 0))
            },
            figure="results_per_driver_s",
        ),
        _curve("ppo", "CartPole-v1", 1e5, 5_000),
        _curve("ppo", "Acrobot-v1", 2e5, 10_000),
        _curve("ppo", "Pendulum-v1", 2e5, 10_000),
        _curve("ppo", "LunarLander-v3", 5e5, 20_000),
        _curve("ppo", "catch", 1e5, 5_000, **OUR_CATCH),
        _curve("impala", "CartPole-v1", 5e5, 20_000),
        _curve("dqn", "CartPole-v1", 5e4, 2_500),
        _curve("dqn", "catch", 3e4, 1_500),
        _curve("sac", "Pendulum-v1", 2e4, 1_000),
        _curve("es", "CartPole-v1", 1e6, 50_000),
        Row(
            "impala",
            "IMPALA on CartPole, steps/s",
            {
                "skate": Cell("skate_side", "impala", {"lanes": 1, "envs": 32}, **FEW),
                "rllib": Cell("rllib_side", "impala", environment="rllib", runs=1, smoke={"seconds": 1}),
            },
            aims={"rllib": 5.0},
            own={"slower_side_busy": 0.95},
        ),
        _scaling(
            "table_4_cores",
            "sixty simulations of 1,000 to 100,000 steps on one core and on two, steps/s",
            "simulations",
            "simulations",
            "steps_per_s",
            SHORT,
            equal=False,
        ),
        _scaling(
            "figure_14a",
            "seconds of an iteration of evolution strategies on Humanoid, 200 episodes of 10 to 1,000 steps",
            "es_iteration",
            "",
            "seconds",
            {"smoke": {"episodes": 20, "generations": 1}},
        ),
        _scaling(
            "figure_14b",
            "PPO on LunarLander on one core and on two, beside a bulk-synchronous program of the same parts, steps/s",
            "ppo_scaling",
            "ppo",
            "steps_per_s",
            ONCE,
            steps=100_000,
            **SAME_LUNAR,
            **PLAIN,
        ),
        Row(
            "first_gradient",
            "seconds from the start of the program to the first gradient step of PPO",
            {
                "skate": Cell("skate_side", "first_gradient"),
                "rllib": Cell("rllib_side", "first_gradient", environment="rllib", runs=1),
            },
            figure="seconds",
            more_is_better=False,
            limit=3.0,
        ),
    ]
}
