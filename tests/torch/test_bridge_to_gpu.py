"""How memory is lent to XLA on a GPU and taken from it: by DLPack, which lends that of a CPU in the same way."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from interop._bridge.arrays import adopt, lend_from_gpu
from tests.torch.bridged import points
from tests.torch.test_bridge_dtypes import LAYOUT, WIDE, extremes, in_layout
from tests.torch.test_bridge_refusals import NOT_PLAIN, PLAIN, without_plain_memory

pytestmark = pytest.mark.usefixtures("float32")


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_64_bits_stay_while_jax_has_32(dtype: torch.dtype) -> None:
    x = extremes(dtype)
    lent = lend_from_gpu(x)
    assert f"torch.{lent.dtype}" == str(dtype)
    np.testing.assert_array_equal(np.asarray(lent), x.numpy())


@LAYOUT
def test_memory_is_shared_where_it_is_aligned_and_row_major(name: str) -> None:
    x = in_layout(name)
    lent = lend_from_gpu(x)
    np.testing.assert_array_equal(np.asarray(lent), x.resolve_neg().numpy())
    is_shared = x.is_contiguous() and not x.is_neg() and x.data_ptr() % 16 == 0
    assert not x.numel() or (lent.unsafe_buffer_pointer() == x.data_ptr()) == is_shared
    assert lent.unsafe_buffer_pointer() % 16 == 0


@without_plain_memory
def test_a_tensor_without_plain_memory_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=PLAIN):
        lend_from_gpu(NOT_PLAIN[name]())


def test_a_tensor_whose_address_is_zero_is_refused() -> None:
    def lent(x: torch.Tensor) -> torch.Tensor:
        lend_from_gpu(x)
        return x

    with pytest.raises(TypeError, match=f"it has none.*{PLAIN}"):
        torch.func.functionalize(lent)(points(4))


@pytest.mark.parametrize("name", ["int4", "float8_e4m3"])
def test_a_result_of_a_dtype_that_torch_lacks_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"torch has no dtype for {name}; convert the array"):
        adopt(jnp.zeros(3, name), on_cpu=False)
