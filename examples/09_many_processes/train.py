"""One process of several that train together: saved by Orbax, resumed where the last checkpoint is.

python train.py --folder run                                                     # alone
python train.py --folder run --processes 2 --process 0 --address host:1234       # one of two
"""

import argparse
import logging
import pathlib
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import AxisType
from model import start_values
from steps import LAID_OUT, batch_of, eager_step, jitted_step, lay_out, spread

import tapejax as tj


def train(options: argparse.Namespace) -> None:
    if options.processes > 1:
        jax.distributed.initialize(
            options.address,
            num_processes=options.processes,
            process_id=options.process,
            initialization_timeout=60,  # seconds that the others have to come
            heartbeat_timeout_seconds=20,  # after which one that says nothing counts as dead, and all end
        )
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    values = start_values()
    LAID_OUT.update({value.shape: lay_out(mesh, options.layout, value.shape) for value in values.values()})
    params = {name: spread(value, LAID_OUT[value.shape]) for name, value in values.items()}
    speed = {name: spread(np.zeros_like(value), LAID_OUT[value.shape]) for name, value in values.items()}
    tj.random.seed(0)  # the same in all processes
    step = eager_step if options.eager else jitted_step

    folder = pathlib.Path(options.folder).absolute()
    keep = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=options.save_every)
    with ocp.CheckpointManager(folder, options=keep) as manager:
        first = 0
        if manager.latest_step() is not None:
            like = {"params": params, "speed": speed, "random": np.asarray(state_of_random())}
            found = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(like))
            params, speed, first = found["params"], found["speed"], manager.latest_step() + 1
            tj.random.set_state(random_from(found["random"]))
        for number in range(first, options.steps):
            loss, params, speed = step(params, speed, *batch_of(number, mesh, tj.random.next_key()))
            if options.process == 0:
                print(f"step {number} loss {float(loss):.7f}", flush=True)
            state = {"params": params, "speed": speed, "random": np.asarray(state_of_random())}
            manager.save(number, args=ocp.args.StandardSave(state))
            time.sleep(options.pause)
    if options.process == 0:
        print("done", flush=True)


def state_of_random() -> list[int]:
    kind, words, drawn = tj.random.get_state()
    return [kind, drawn, *words]


def random_from(state: np.ndarray) -> tuple[int, tuple[int, ...], int]:
    kind, drawn, *words = state.tolist()
    return kind, tuple(words), drawn


def options_of(what: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--layout", choices=("data", "fully"), default="fully")
    parser.add_argument("--folder", required=True, help="where checkpoints are")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--eager", action="store_true", help="record op by op, without jit")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps")
    return parser


if __name__ == "__main__":
    logging.getLogger("absl").setLevel(logging.ERROR)
    parser = options_of(__doc__)
    parser.add_argument("--process", type=int, default=0, help="the number of this one")
    parser.add_argument("--address", help="host:port of process 0")
    train(parser.parse_args())
