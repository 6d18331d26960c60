"""What a scan finds in small sources, and what it leaves alone; and that versions come from the records."""

import json
import pkgutil
import re
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from interop.__main__ import main
from interop.scan import Finding, scan
from interop.survey.changes import changes

HEAD = (
    "import jax\nimport jax.numpy as jnp\nimport torch\nimport torch.nn.functional as F\nfrom torch import clip, nn\n"
)
INIT = "class Q:\n def __init__(self, bits):\n  "
CLAMP = "\n def f(self, x):\n  return x.clamp(-8, self.hi)"
IN_TORCH = "import torch\nimport torch.nn.functional as F\nfrom torch import clip, nn\nimport numpy as np\n"


def found(tmp_path: Path, code: str, head: str = IN_TORCH, **options: str) -> list[Finding]:
    file = tmp_path / "code.py"
    file.write_text(head + code)
    return list(scan([file], at_least="rare", **options).findings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "question", "tie"),
    [
        ("y = torch.clamp(x, -8, 7)", "version", "likely"),
        ("y = torch.clamp(x, min=qmin, max=qmax)", "version", "likely"),
        ("c = x + (x.round() - x).detach()\ny = c.clamp(0, n)", "version", "likely"),
        ("y = clip(round_ste(x), 0, n)", "version", "likely"),
        ("from torch import *\ny = clamp(x, -8, 7)", "version", "likely"),
        ("from torch.nn.functional import *\ncut = clip\ny = cut(x, -8, 7)", "version", "likely"),
        ("import functools\nf = functools.partial(torch.clamp, min=-8, max=7)", "version", "likely"),
        ("from functools import partial\ny = partial(torch.clamp, x)(0, 6)", "version", "rare"),
        ("y = x.clamp_(0, 6)", "version", "possible"),
        ("def f(x: torch.Tensor, z: np.ndarray):\n    return x.clamp(0, 6)", "version", "possible"),
        (
            "try:\n    from torch import clamp\nexcept ImportError:\n    def clamp(*args): ...\ny = clamp(x, 0, 6)",
            "version",
            "possible",
        ),
        ("y = torch.clamp_min(x, 1e-6)", "version", "rare"),
        ("y = torch.fmax(x, z)", "version", "rare"),
        ("y = F.margin_ranking_loss(x, z, w)", "version", "possible"),
        ("loss = nn.TripletMarginLoss(margin=1.0)", "version", "possible"),
        ("y = F.normalize(x, dim=1)", "version", "rare"),
        ("y = torch.maximum(x, z)", "spelling", "rare"),
        ("y = torch.max(x, 1)", "spelling", "rare"),
        ("y = torch.max(x, dim=1)", "spelling", "rare"),
        ("y = torch.max(x, z)", "spelling", "rare"),
        ("y = torch.max(x, torch.zeros_like(x))", "spelling", "possible"),
        ("y = torch.min(torch.tensor(0.0), x)", "spelling", "possible"),
        ("y = torch.max(x, qmin)", "spelling", "likely"),
        ("y = F.max_pool2d(x, 2)", "spelling", "possible"),
        ("pool = nn.MaxPool2d(2)", "spelling", "possible"),
        ("y = torch.where(x > 0, x, 0.0)", "where", "possible"),
        ("y = torch.where(x > z, x, z)", "where", "rare"),
        ("y = torch.where(x > 0, x, 0.1 * x)", "where", "possible"),
        ("y = torch.where(x > 0, torch.sqrt(x), 0.0)", "branch", "likely"),
        ("y = torch.where(x > 0, x.log(), 0.0)", "branch", "likely"),
        ("y = torch.where(x != 0, 1 / x, 0.0)", "branch", "likely"),
        ("y = torch.where(x > 0, x ** 0.5, 0.0)", "branch", "likely"),
        ("y = torch.where(x > 0, torch.pow(x, 0.5), 0.0)", "branch", "likely"),
        ("y = torch.where(x > 1, torch.acosh(x), 0.0)", "branch", "likely"),
        ("s = torch.log(x)\ny = torch.where(x > 0, s, 0.0)", "branch", "likely"),
        ("y = torch.acos(torch.relu(x).clamp(-1.0, 1.0))", "bound", "likely"),
        ("z = x.clamp(min=0)\ny = z.sqrt()", "bound", "likely"),
        ("y = x + (x.clamp(0, 1) - x).detach()", "straight-through", "likely"),
        ("y = (x.clamp(0, 1) - x).detach() + x", "straight-through", "likely"),
        ("rest = (x.clamp(0, 1) - x).detach()\ny = x + rest", "straight-through", "likely"),
        ("y = torch.clamp(x, max=7, min=-8)", "version", "likely"),
        ("y = torch.sqrt(torch.maximum(zero, torch.relu_(x)).clamp_(0))", "bound", "likely"),
        ("y = torch.log(torch.maximum(0.0, x))", "bound", "likely"),
        ("y = x.clamp(min=0) ** 0.5", "bound", "likely"),
        ("y = torch.relu(x).pow(0.5)", "bound", "likely"),
        ("limit = torch.clamp\ny = limit(x, 0, 6)", "version", "possible"),
        ("G = torch.nn.functional\ny = G.max_pool2d(x, 2)", "spelling", "possible"),
        ("y = torch.Tensor.clamp(x, 0, 6)", "version", "possible"),
        (f"{INIT}self.f = torch.clamp\n def f(self, x):\n  return self.f(x, 0, 6)", "version", "possible"),
        ("def f(x, cut=torch.clamp):\n    return cut(x, 0, 6)", "version", "possible"),
        ("def f(x, smallest=1e-8):\n    return x.clamp(min=smallest)", "version", "rare"),
        ("assert (y := x.clamp(0, 6)) is not None", "version", "possible"),
        ("if (y := x.clamp(min=0)) is not None:\n    z = y.sqrt()", "bound", "likely"),
        (
            "try:\n    import torch as np\nexcept ImportError:\n    import numpy as np\ny = np.clip(x, 0, 6)",
            "version",
            "possible",
        ),
        ("y = torch.where(0 < x, x, 0.0)", "where", "possible"),
        ("y = x.where(x > 0, 0.0)", "where", "possible"),
        ("x = f(z)\ny = torch.where(x > 0, x, 0.0)", "where", "possible"),
        ("x = f(z)\nok = x > 0\ny = torch.where(ok, x, 0.1 * x)", "where", "possible"),
        ("y = x.sqrt().where(x > 0, 0.0)", "branch", "likely"),
        ("y = torch.func.grad(lambda x: x.clamp(0, 6))(x).item()", "version", "possible"),
        ("assert torch.func.grad(lambda x: x.clamp(0, 6))(x) == 1", "version", "possible"),
        ("y = torch.autograd.grad(x.clamp(0, 6).sum(), x)[0].item()", "version", "possible"),
        ("y = torch.clamp(x, 0, 1e-10**-64)", "version", "rare"),
        (f"y = torch.clamp(x, 0, 1{'0' * 400})", "version", "possible"),
        ("y = torch.clamp(x, -1e999, 1e999)", "version", "rare"),
        ("y = x.clamp(0, 6).to(device)", "version", "possible"),
        ("y = x.clamp(-1, 0)", "version", "possible"),
        ("y = x.clamp(-5, 5)", "version", "possible"),
        ("y = x.clamp(-0.5, 2.5)", "version", "possible"),
        ("y = x.clamp(0, 255)", "version", "possible"),
        ("y = torch.clamp(x, -1, (-8) ** 0.5)", "version", "possible"),
        ("y = torch.clamp_min(x, 0.001)", "version", "rare"),
        ("c = x + (z - x).detach()\ny = c.clamp(0, n)", "version", "possible"),
        ("y = torch.maximum(x, torch.tensor(2.0))", "spelling", "rare"),
        ("y = F.max_pool2d(x, kernel)", "spelling", "possible"),
        ("y = torch.where(x > 0, torch.sqrt(x.sum(0)), 0.0)", "branch", "likely"),
        ("y = torch.where(x > 0, torch.sqrt(x + z), 0.0)", "branch", "likely"),
    ],
)
def test_findings(code: str, question: str, tie: str, tmp_path: Path) -> None:
    """The one of the question that is asked; a clamp within may be another."""
    (finding,) = (f for f in found(tmp_path, code, before="2.13", after="2.15") if f.question == question)
    assert finding.tie == tie
    assert finding.line == (IN_TORCH + code).count("\n") + 1


def test_what_was_clamped_before_is_not_clamped_straight_through(tmp_path: Path) -> None:
    code = "c = x.clamp(0, 1)\ny = c + (c.round() - c).detach()"
    assert [finding.question for finding in found(tmp_path, code, before="2.13", after="2.15")] == ["version"]


@pytest.mark.parametrize(
    "code",
    [
        "from torch import *\ndef clamp(*args): ...\ny = clamp(x, 0, 6)",
        "y = np.clip(x, 0, 6)",
        "y = np.asarray(x).clip(0, 6)",
        "def f(x: np.ndarray):\n    return x.clip(0, 6)",
        "import pandas as pd\ndef f(frame: pd.DataFrame, low=0):\n    return frame.clip(low, 6)",
        "def clip(x, low, high):\n    return min(max(x, low), high)\ny = clip(x, 0, 6)",
        "y = max(x, 0)",
        "y = torch.relu(x)",
        "y = x.max()",
        "with torch.no_grad():\n    y = x.clamp(0, 6)",
        "@torch.no_grad()\ndef f(x):\n    return x.clamp(0, 6)",
        "y = x.clamp(0, 6).long()",
        "with torch.no_grad():\n    y = torch.func.grad(lambda x: x.clamp(0, 6))(x)",
        "@torch.no_grad()\nasync def f(x):\n    return x.clamp(0, 6)",
        "y = torch.func.grad(f)(x.clamp(0, 6)).item()",
        "y = x.round().clamp(-8, 7)",
        "x.data.clamp_(-1, 1)",
        "torch.clamp(x.grad, -5, 5, out=x.grad)",
        "y = x.clamp(0, 255).to(z, dtype=torch.uint8)",
        "y = x.type(torch.int64).clamp(0, 6)",
        "y = x.clip(0, 6).astype(int)",
        "y = torch.arange(9).clamp(0, 6)",
        "y = z[x.clamp(0, 6)]",
        "y = torch.where(x > 0, y, 0.0)",
        "x = f(z)\nok = x > 0\nx = g(x)\ny = torch.where(ok, x, 0.0)",
        "s = torch.where(x > 0, x, 1.0)\ny = torch.where(x > 0, torch.sqrt(s), 0.0)",
        "y = torch.where(x > 0, torch.sqrt(x + 1e-6), 0.0)",
        "y = torch.where(mask, 1 / scale, 0.0)",
        "y = torch.where(x > z, y / z, y)",
        "y = torch.sqrt(x)",
        "y = torch.relu(x) ** 2",
        "y = torch.where(x > 0, torch.sqrt(x * (x > 0)), 0.0)",
        "y = torch.detach(x.clamp(0, 6))",
        "y = 'text'.max(z)",
        "a = b\nb = a\ny = a(x, 0, 6)",
        "with torch.no_grad():\n    y = torch.where(x > 0, x, torch.sqrt(x))",
        "with torch.no_grad():\n    y = x.clamp(min=0) ** 0.5",
        "y = torch.where(x > 1, x, 0.0)",
        "y = torch.where(x > 0, x, 2 + z)",
        "y = torch.where(x > 0, x, 0.1 * z)",
        "y = torch.where(x > 0, torch.sqrt(z), 0.0)",
        "y = torch.where(x > 0, torch.tanh(x), 0.0)",
        "y = torch.where(x > 0, x**2.0, 0.0)",
        "y = torch.where(x > 0, torch.sqrt(F.softplus(x)), 0.0)",
        "y = x + (x.clamp(0, 1) - z).detach()",
    ],
)
def test_nothing_is_found(code: str, tmp_path: Path) -> None:
    assert found(tmp_path, code, before="2.13", after="2.15") == []


OF_NUMBERS, OF_TENSORS = (
    f"clamp: on a tie the gradient by {names} was {before} in torch 2.13.0 and is {after} in torch 2.15.0, recorded at "
    "x=0, min=0, max=6"
    for names, before, after in (("x", "1", "0"), ("x, min, max", "1 0 0", "0.5 0.5 0"))
)


@pytest.mark.parametrize(
    ("bounds", "asked"),
    [
        ("0, 6", OF_NUMBERS),
        ("0, 6, out=z", OF_NUMBERS),
        ("None, 6", OF_NUMBERS),
        ("0, len(z)", OF_NUMBERS),
        ("0, z.shape[0] - 1", OF_NUMBERS),
        ("z.numel(), z.size(0)", OF_NUMBERS),
        ("0, (1 << z) - 1", OF_NUMBERS),
        ("-z.item(), float(z)", OF_NUMBERS),
        ("0, 2**z - 1", OF_NUMBERS),
        ("-np.pi, torch.inf", OF_NUMBERS),
        ("0, torch.finfo(z.dtype).max - 1000", OF_NUMBERS),
        ("0, z", OF_NUMBERS),
        ("max=z", OF_TENSORS),
        ("True, z", OF_TENSORS),
        ("lo, hi", OF_TENSORS),
        ("**bounds", OF_TENSORS),
    ],
)
def test_bounds_that_are_numbers_and_others(bounds: str, asked: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, f"y = torch.clamp(x, {bounds})", before="2.13", after="2.15")
    assert finding.what == asked


def test_operands_by_keyword(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "y = torch.clamp(max=6, min=0, input=x)", before="2.13", after="2.15")
    assert finding.what == OF_NUMBERS


@pytest.mark.parametrize(
    "code",
    [
        "LO, HI = -8, 2**3 - 1\ny = torch.clamp(x, LO, HI)",
        "HALF = 2**3\nHI: int = HALF - 1\ndef f(x):\n    return torch.clamp(x, -HALF, max=HI)",
        "def f(x):\n    lo, hi = -8, 7\n    return torch.clamp(x, lo, hi)",
        "class Q:\n    LO = -8\n    HI = 7\n    def f(self, x):\n        return torch.clamp(x, self.LO, Q.HI)",
        "class Q:\n def __init__(self):\n  self.hi = 7\n def f(self, x):\n  return x.clamp(-8, self.hi)",
        "class Q:\n def __init__(self, hi=7):\n  self.hi = hi\n def f(self, x):\n  return x.clamp(-8, self.hi)",
        "def f(x, lo=-8, *, z, hi=7):\n    return x.clamp(lo, hi)",
        "y = x.clamp(-1 << 3, 2**4 // 2 - 1)",
        "y = x.clamp(torch.iinfo(torch.int8).min, np.iinfo(np.int8).max)",
    ],
)
def test_a_name_that_is_assigned_once_is_its_number(code: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, code, before="2.13", after="2.15")
    assert (finding.what, finding.tie) == (OF_NUMBERS, "likely")


@pytest.mark.parametrize(
    "code",
    [
        f"{INIT}self.hi = 2 ** (bits - 1) - 1{CLAMP}",
        f"{INIT}self.hi = 1\n  if bits > 1:\n   self.hi = 2**bits - 1{CLAMP}",
        "def f(x, quant_max: int):\n    return x.clamp(max=quant_max)",
        "def f(x, quant_max: int | None = None):\n    return x.clamp(max=quant_max)",
        "def f(x, quant_max: Optional[Union[int, float]]):\n    return x.clamp(max=quant_max)",
    ],
)
def test_a_number_need_not_be_known(code: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, code, before="2.13", after="2.15")
    assert (finding.what, finding.tie) == (OF_NUMBERS, "likely")


@pytest.mark.parametrize(
    "code",
    [
        "HI = torch.ones(2)\nif z:\n    HI = 7\ny = torch.clamp(x, max=HI)",
        "HI = 7\nHI += 1\ny = torch.clamp(x, max=HI)",
        "HI = 7\ndef f(x, HI):\n    return torch.clamp(x, max=HI)",
        "HI = 7\ndef f(x):\n    for HI in x:\n        x = torch.clamp(x, max=HI)",
        "HI = 7\ndef g(t):\n    global HI\n    HI = t\ny = torch.clamp(x, max=HI)",
        "class Q:\n HI = 7\n def f(self, x):\n  return torch.clamp(x, max=HI)",
        "class Q:\n HI = 7\n def f(self, x):\n  self.HI = x.max()\n  return torch.clamp(x, max=self.HI)",
        "LO = HI\nHI = LO\ny = torch.clamp(x, max=HI)",
        "def f(self, x):\n    self.HI = 7\n    return torch.clamp(x, max=self.HI)",
    ],
)
def test_a_name_that_may_be_something_else_is_no_number(code: str, tmp_path: Path) -> None:
    (finding,) = (f for f in found(tmp_path, code, before="2.13", after="2.15") if f.question == "version")
    assert "by x, min, max" in finding.what


@pytest.mark.parametrize(
    ("code", "what", "cure"),
    [
        ("y = torch.max(x, z)", "torch.maximum is balanced", "interop.native.maximum"),
        ("y = x.min(z)", "torch.minimum is balanced", "interop.native.minimum"),
        ("y = x.max(dim=z)", "torch.max is inclusive", "interop.native.max_with_indices"),
        ("y = x.max(dim)", "torch.max is inclusive", "interop.native.max_with_indices"),
        ("y = torch.nn.MaxPool2d(2)", "torch.nn.functional.max_pool2d is inclusive", "interop.nn.MaxPool2d"),
        ("y = jax.lax.max(x, z)", "jax.lax.max is balanced", "jaxclamp.maximum"),
        ("y = jax.nn.hard_tanh(x)", "jax.nn.hard_tanh is inclusive", "jaxclamp.hardtanh"),
        ("y = torch.where(x > 0, x, 0)", "a kink by hand: at x = 0", "interop.native.relu"),
        ("y = jnp.where(x > 0, x, 0.1 * x)", "a kink by hand: at x = 0", "jaxclamp.leaky_relu"),
    ],
)
def test_the_cure_is_an_op_of_this_project(code: str, what: str, cure: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, code, head=HEAD)
    assert finding.what.startswith(what)
    assert finding.cure.rpartition(" ")[2] == cure
    pkgutil.resolve_name(cure)


PROJECT = "import interop, jaxclamp\nfrom interop import as_of\n"
IN_JAX = f"import jax.numpy as jnp\n{PROJECT}"
PINNED = [
    (IN_TORCH, 'with interop.as_of("torch 2.13"):\n    y = x.clamp(0, 6)'),
    (IN_TORCH, "with interop.min_norm(), open(x) as f:\n    if x:\n        y = x.clamp(0, 6)"),
    (IN_TORCH, 'pin = as_of("torch 2.13")\nwith pin:\n    y = x.clamp(0, 6)'),
    (IN_TORCH, 'PIN = as_of("torch 2.13")\ndef f(x):\n    with PIN:\n        return x.clamp(0, 6)'),
    (IN_TORCH, '@as_of("torch 2.13")\ndef f(x):\n    return x.clamp(0, 6)'),
    (IN_TORCH, 'def f(x):\n    return x.clamp(0, 6)\ny = as_of("torch 2.13")(f)(x)'),
    (IN_JAX, "y = jaxclamp.min_norm(lambda x: jnp.clip(x, 0, 6))(x)"),
    (IN_JAX, "@jaxclamp.min_norm\ndef f(x):\n    return jnp.clip(x, 0, 6)"),
    (IN_JAX, '@jaxclamp.min_norm(ties="inclusive")\ndef f(x):\n    return jnp.clip(x, 0, 6)'),
    (IN_JAX, "def f(x):\n    return jnp.clip(x, 0, 6)\ng = jaxclamp.grad(f)"),
    (IN_JAX, "g = jaxclamp.grad(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0))"),
]


@pytest.mark.parametrize(("head", "code"), PINNED)
def test_what_is_pinned_is_counted_alone(head: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(f"{PROJECT}{head}{code}")
    report = scan([tmp_path], before="2.13", at_least="rare")
    assert (report.findings, report.pinned, report.ignored) == ((), 1, 0)
    assert "1 pinned by a block" in str(report)


def test_of_two_equal_calls_on_a_line_one_is_pinned(tmp_path: Path) -> None:
    code = "y = jnp.clip(x, 0, 6) + jaxclamp.min_norm(lambda x: jnp.clip(x, 0, 6))(x)"
    (tmp_path / "code.py").write_text(IN_JAX + code)
    report = scan([tmp_path], at_least="rare")
    assert (len(report.findings), report.pinned) == (1, 1)


@pytest.mark.parametrize(
    ("code", "question"),
    [
        ('with interop.as_of("torch 2.13"):\n    pass\ny = x.clamp(0, 6)', "version"),
        ("y = jaxclamp.min_norm(g)(x.clamp(0, 6))", "version"),
        ("def f(x):\n    return x.clamp(0, 6)\ny = jaxclamp.relu(g)", "version"),
        ("with other.as_of(1):\n    y = x.clamp(0, 6)", "version"),
        ("with interop.min_norm():\n    y = torch.where(x > 0, torch.sqrt(x), 0.0)", "branch"),
        ("with interop.ties():\n    y = x.clamp(0, 6)", "version"),
    ],
)
def test_what_is_beside_a_block_or_not_decided_by_it_stays(code: str, question: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, code, head=PROJECT + IN_TORCH, before="2.13")
    assert finding.question == question


@pytest.mark.parametrize(
    ("code", "ignored"),
    [
        ("y = torch.clamp(x, -8, 7)  # jaxclamp: ignore", 1),
        ("y = torch.clamp(x, -8, 7)  # jaxclamp: ignore: no codes here", 1),
        ("y = torch.clamp(\n    x,\n    -8, 7,\n)  #jaxclamp:ignore", 1),
        ("y = (torch.clamp(x, -8, 7),\n    x.clamp(-8, 7))  # jaxclamp: ignore", 1),
        ("# jaxclamp: ignore\ny = torch.clamp(x, -8, 7)", 0),
        ('y = torch.clamp(x, -8, 7), "# jaxclamp: ignore"', 0),
        ("y = torch.clamp(x, -8, 7)  # jaxclamp: ignored", 0),
    ],
)
def test_a_comment_on_a_line_of_a_call_ignores_it(code: str, ignored: int, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(IN_TORCH + code)
    report = scan([tmp_path], before="2.13")
    assert report.ignored == ignored
    assert len(report.findings) == code.count("clamp(") - ignored
    assert ("1 ignored by a comment" in str(report)) == (ignored > 0)
    assert json.loads(report.to_json())["ignored"] == ignored


def test_a_file_that_imports_no_framework_is_left_alone(tmp_path: Path) -> None:
    assert found(tmp_path, "y = x.clamp(0, 6)", head="# torch", before="2.13") == []


FUNCTION = """
class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(0, 1)
    @staticmethod
    def backward(ctx, g):
        return g * (ctx.saved_tensors[0] >= 0)
"""


def test_a_derivative_by_hand(tmp_path: Path) -> None:
    """The clamp in forward has no gradient of its own."""
    (finding,) = found(tmp_path, FUNCTION, before="2.13")
    assert (finding.question, finding.code) == ("straight-through", "ctx.saved_tensors[0] >= 0")
    assert "is 1 on this bound" in finding.what


@pytest.mark.parametrize(
    "code",
    [
        "y = jnp.clip(x, 0, 6)",
        "y = jnp.maximum(x, 0)",
        "y = jax.lax.max(x, z)",
        "y = x.clip(0, 6)",
        "from functools import partial\ny = jax.tree.map(partial(jnp.clip, min=0, max=6), x)",
    ],
)
def test_spellings_in_jax(code: str, tmp_path: Path) -> None:
    (finding,) = found(tmp_path, code, head="import jax\nimport jax.numpy as jnp\n")
    assert "is balanced at a tie" in finding.what
    assert finding.cure.startswith("jaxclamp.min_norm(f)")


def test_a_version_is_compared_with_that_after_it(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "y = torch.clamp(x, -8, 7)", before="2.11", after="2.13")
    assert finding.what == "torch.clamp is inclusive at a tie, and other spellings may not be"


def test_what_changed_is_read_from_the_records(tmp_path: Path) -> None:
    """Each function that changed is found, with its numbers; between two versions without a change none is."""
    ops = changes("torch", "2.13", "2.15").ops
    for op in ops:
        (finding,) = found(tmp_path, f"y = torch.{op}(x, 0.0)", before="2.13", after="2.15")
        assert finding.question == "version"
        assert finding.what.startswith(f"{op}: on a tie the gradient by x")
        assert re.search("was (1|1 0) in torch 2.13.0 and is (0|0.5 0.5) in torch 2.15.0", finding.what)
    for op in ops:
        questions = {f.question for f in found(tmp_path, f"y = torch.{op}(x, 0.0)", before="2.14.1", after="2.15")}
        assert questions <= {"spelling"}


def test_the_report(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import torch\ny = torch.clamp(x, -8, 7)\nz = torch.clamp(x, 0, 1)\n")
    (tmp_path / "two.py").write_text("import torch\ny = (\n")
    report = scan([tmp_path], before="2.13")
    assert (len(report.findings), report.hidden, report.files) == (1, 1, 2)
    assert str(report).startswith("1 place in 2 files where a tie is likely: 1 version\n")
    assert "1 more where a tie is less likely: --at-least possible or rare" in str(report)
    assert f"not read: {tmp_path / 'two.py'}" in str(report)
    assert str(report).endswith("To accept a place: a comment # jaxclamp: ignore on its line.")
    assert "accept" not in str(scan([tmp_path / "two.py"]))
    assert max(map(len, report.text(60).splitlines())) <= 60 or " " not in str(tmp_path)
    assert json.loads(report.to_json())["findings"][0]["line"] == 2


@pytest.mark.parametrize(
    "source",
    [b"y = (", b"y = '\xff'", b"y = " + b"+".join([b"1"] * 100_000), b"y = " + b"-" * 100_000 + b"1"],
    ids=["syntax", "bytes", "many terms", "many signs"],
)
def test_what_python_does_not_parse_is_listed(source: bytes, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_bytes(b"import torch\n" + source)
    (tmp_path / "two.py").write_text("import torch\ny, z = torch.clamp(x, -8, 7), '\\d'\n")  # which Python warns of
    with warnings.catch_warnings(action="error"):
        report = scan([tmp_path], before="2.13")
    assert f"not read: {tmp_path / 'one.py'}" in str(report)
    assert (len(report.findings), report.files) == (1, 2)


def test_notebooks_are_listed(tmp_path: Path) -> None:
    """Their JSON is a dict to Python, in which no call is found."""
    cell = {"cell_type": "code", "source": ["import torch\n", "y = torch.clamp(x, -8, 7)"]}
    notebook = tmp_path / "one.ipynb"
    notebook.write_text(json.dumps({"cells": [cell]}))
    assert scan([notebook], before="2.13").unread == (str(notebook),)


def test_files_are_decoded_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "mark.py").write_bytes(b"\xef\xbb\xbfimport torch\ny = torch.clamp(x, -8, 7)")
    (tmp_path / "latin.py").write_bytes(b"# coding: latin-1\nimport torch\ny = torch.clamp(x, -8, 7)  # \xe4")
    assert len(scan([tmp_path], before="2.13").findings) == 2


def test_a_folder_or_a_broken_link_of_that_name_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "link.py").symlink_to("absent")
    assert scan([tmp_path]).files == 0


def test_hidden_folders_and_virtual_environments_are_left_out(tmp_path: Path) -> None:
    for folder in (".git", "env/lib", "src"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "code.py").write_text("import torch\ny = torch.clamp(x, -8, 7)\n")
    (tmp_path / "env" / "pyvenv.cfg").touch()
    assert [finding.file for finding in scan([tmp_path], before="2.13").findings] == [str(tmp_path / "src" / "code.py")]
    assert len(scan([tmp_path / "env", tmp_path / ".git"], before="2.13").findings) == 2  # as they are named


def test_command(tmp_path: Path) -> None:
    """It fails where a place is shown, so that CI can hold it."""
    (tmp_path / "code.py").write_text(IN_TORCH + "y = torch.clamp(x, -8, 7)\nz = torch.clamp(x, 0, 1)\n")

    def run(*options: str, width: int = 60) -> Result:
        environment = {"COLUMNS": str(width)}
        return CliRunner().invoke(main, ["scan", str(tmp_path), *options], env=environment)

    shown = run("--before", "torch 2.13", "--after", "2.15.0+cpu")
    assert (shown.exit_code, shown.stdout) == (1, scan([tmp_path], before="2.13", after="2.15").text(60) + "\n")
    as_json = run("--before", "2.13", "--at-least", "possible", "--json")
    assert (as_json.exit_code, len(json.loads(as_json.stdout)["findings"])) == (1, 2)
    nothing = run()
    hint = "To find what an upgrade of torch changes, too: --before, as --before 2.13.\n"
    assert (nothing.exit_code, nothing.stdout) == (0, "0 places in 1 file\n" + hint)
    for options in (["--before", "1.0"], ["--at-least", "often"], ["absent"]):
        assert run(*options).exit_code == 2


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no"):
        scan([tmp_path / "absent.py"])
    with pytest.raises(ValueError, match=r"no record of torch '1\.0'"):
        scan([tmp_path], before="1.0")
    with pytest.raises(ValueError, match="at_least='often'"):
        scan([tmp_path], at_least="often")  # type: ignore[arg-type]
