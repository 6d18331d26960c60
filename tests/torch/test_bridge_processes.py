"""The bridge in processes of its own: fork and spawn, and an exit right after work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the processes import it")

EXIT_PROCESSES = int(os.environ.get("JAXCLAMP_EXIT_PROCESSES", "8"))
"""How many processes are watched while they exit; aborts are rare, so now and then run it with 200."""

FORK = """
import multiprocessing
import torch
import interop

torch.set_num_threads(1)  # torch's own threads do not survive a fork either
x = torch.full((200_000,), -1.0, requires_grad=True)
{before}

def child(call):
    try:
        exec(call)
    except RuntimeError as error:
        print(error)

for call in {calls}:
    print(call, flush=True)
    process = multiprocessing.get_context("fork").Process(target=child, args=(call,))
    process.start()
    process.join(10)
    print("hangs" if process.is_alive() else f"ends with {{process.exitcode}}", flush=True)
    process.kill()
"""

SPAWN = """
import torch
import interop

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        x = torch.full((200_000,), index - 0.5, requires_grad=True)
        y = interop.relu(x)
        y.sum().backward()
        return y.detach().sum(), x.grad.sum()

if __name__ == "__main__":
    data = Data()
    data[0]
    loader = torch.utils.data.DataLoader(data, num_workers=1, multiprocessing_context="spawn")
    print([[part.item() for part in batch] for batch in loader])
"""

EXIT = """
import torch
import interop

for _ in range(40):
    x = torch.full((300_000,), -1.0).requires_grad_()
    interop.clamp(x, 0.0, 6.0).sum().backward()
"""

GROWTH = """
import psutil
import torch
import interop

def resident():
    return psutil.Process().memory_info().rss / 2**20

def work(calls):
    for _ in range(calls):
        x = torch.full((1000,), 3.0).requires_grad_()
        interop.clamp(x, 0.0, 6.0).sum().backward()

work(500)
before = resident()
work(10_000)
print(resident() - before)
"""


def output(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fork_after_jax_has_started() -> None:
    """Each call in a child of its own."""
    calls = [
        "interop.relu(x.detach())",
        "y.sum().backward()",
        "interop.torch_to_jax(x)",
        "interop.jax_to_torch(interop.torch_to_jax(x))",
    ]
    rest = output("-c", FORK.format(before="y = interop.relu(x)", calls=calls))
    for call in reversed(calls):
        rest, _, printed = rest.rpartition(f"{call}\n")
        assert "JAX was already in use when this process was forked" in printed, call
        assert "multiprocessing_context='spawn'" in printed, call
        assert printed.endswith("ends with 0\n"), call
    assert rest == ""


@pytest.mark.thorough
def test_fork_before_jax_has_started() -> None:
    call = "interop.relu(x).sum().backward(); print(x.grad.count_nonzero().item(), interop.torch_to_jax(x.grad).shape)"
    assert output("-c", FORK.format(before="", calls=[call])) == f"{call}\n0 (200000,)\nends with 0\n"


@pytest.mark.thorough
def test_spawn_after_jax_has_started(tmp_path: Path) -> None:
    script = tmp_path / "loader.py"
    script.write_text(SPAWN)
    assert output(str(script)) == "[[0.0, 0.0], [100000.0, 200000.0]]\n"


@pytest.mark.thorough
@pytest.mark.parametrize("pair", range((EXIT_PROCESSES + 1) // 2))
def test_exit(pair: int) -> None:
    """XLA's threads must not need the GIL once Python is gone. Two processes at a time, which compete for the cores."""
    processes = [subprocess.Popen([sys.executable, "-c", EXIT], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], errors


@pytest.mark.thorough
def test_memory_does_not_grow() -> None:
    assert float(output("-c", GROWTH)) < 20


@pytest.mark.thorough
def test_distributed_data_parallel() -> None:
    example = Path(__file__).parents[2] / "examples" / "distributed.py"
    assert output(str(example)) == "2 processes, one gradient: 58 entries agree\n"
