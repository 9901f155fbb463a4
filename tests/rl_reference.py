"""Random blocks beside the episodes that they were made of, for slow and obvious references.

A reference walks over the `Piece`s of a block: steps of one episode that follow each other. It never looks at masks,
cuts or columns, so it can't repeat a mistake that is made with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skate.rl.block import Array, Block

#: What stands in slots that hold no transition: whatever reads them is found out.
GARBAGE = float("nan")


@dataclass
class Step:
    t: int
    n: int
    observation: float
    action: int
    reward: float
    log_prob: float
    next_observation: float
    terminated: bool
    truncated: bool


#: Steps of one episode. After its last one the episode ended, was cut by a limit, or goes on in the next block.
Piece = list[Step]


def value(observation: Array | float) -> Array:
    """A value function: any function of an observation does, if it differs from one observation to the next."""
    return 10 * np.sin(np.asarray(observation, np.float64).reshape(np.shape(observation)[:1]) * 12.9898)


def random_block(seed: int, time: int, width: int, mean_length: float = 4.0) -> tuple[Block, list[Piece]]:
    """A block of `width` columns in several modes of autoreset, and its pieces in the order of columns and time."""
    rng = np.random.default_rng(seed)
    block = Block(
        observations=np.full((time, width, 1), GARBAGE, np.float32),
        actions=np.full((time, width), -1, np.int64),
        rewards=np.full((time, width), GARBAGE, np.float32),
        terminated=np.zeros((time, width), bool),
        truncated=np.zeros((time, width), bool),
        mask=np.zeros((time, width), bool),
        log_probs=np.full((time, width), GARBAGE, np.float32),
        cuts=np.zeros((0, 2), np.int64),
        bootstrap=np.zeros((0, 1), np.float32),
        episode_returns=np.zeros(0),
        episode_lengths=np.zeros(0, np.int64),
    )
    pieces: list[Piece] = []
    names = iter(range(1, 10 * (time + 2) * (width + 1)))
    for n in range(width):
        idle = int(rng.integers(0, 2))  # slots that a reset takes: none, or one (next-step autoreset)
        t = idle * int(rng.integers(0, 2))
        whole = bool(rng.integers(0, 4) == 0)  # whole episodes alone: the rest of the column stays empty
        while t < time:
            length = int(rng.geometric(1 / mean_length))
            stop = int(rng.integers(1, length + 1)) if rng.integers(0, 12) == 0 else length
            if whole and t + length > time:
                break
            kind = rng.choice(["terminated", "truncated", "both"])
            observation = float(next(names))
            piece = []
            for k in range(min(stop, time - t)):
                last = k == length - 1
                step = Step(
                    t=t + k,
                    n=n,
                    observation=observation,
                    action=int(rng.integers(0, 5)),
                    reward=float(np.float32(rng.normal())),
                    log_prob=float(np.float32(-rng.exponential())),
                    next_observation=float(next(names)),
                    terminated=last and kind != "truncated",
                    truncated=last and kind != "terminated",
                )
                observation = step.next_observation
                piece.append(step)
            pieces.append(piece)
            t += length + idle
            if stop < length:
                break  # no steps were asked for beyond this one: the rest of the column stays empty
    write(block, pieces, rng)
    return block, pieces


def write(block: Block, pieces: list[Piece], rng: np.random.Generator) -> None:
    """Fill in what the steps say."""
    for step in (step for piece in pieces for step in piece):
        at = step.t, step.n
        block.observations[at] = step.observation
        block.actions[at] = step.action
        block.rewards[at] = step.reward
        block.log_probs[at] = step.log_prob
        block.terminated[at] = step.terminated
        block.truncated[at] = step.truncated
        block.mask[at] = True
    open_ended = [piece[-1] for piece in pieces if not piece[-1].terminated]
    rng.shuffle(open_ended)  # type: ignore[arg-type]  # the order of the cuts must not matter
    block.cuts = np.array([(step.t, step.n) for step in open_ended], np.int64).reshape(-1, 2)
    block.bootstrap = np.array([step.next_observation for step in open_ended], np.float32).reshape(-1, 1)
    over = [piece for piece in pieces if piece[-1].terminated or piece[-1].truncated]
    block.episode_returns = np.array([sum(step.reward for step in piece) for piece in over], np.float64)
    block.episode_lengths = np.array([len(piece) for piece in over], np.int64)


def read_only(block: Block) -> Block:
    """The block as it arrives from shared memory."""
    for array in vars(block).values():
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return block
