"""Every kernel is compiled for each kind of GPU, with no GPU at hand: NVRTC comes with Warp."""

from pathlib import Path

import pytest
import warp as wp

from gigl_loader.sampler.gpu import warp_programs


@pytest.mark.parametrize(
    "arch", [90, *(pytest.param(n, marks=pytest.mark.wide) for n in (80, 100))]
)
def test_all_kernels_compile_for(arch: int, tmp_path: Path) -> None:
    wp.init()
    made = wp.compile_aot_module(
        warp_programs, device=None, arch=arch, module_dir=tmp_path, use_ptx=False
    )
    assert any(path.suffix == ".cubin" and path.stat().st_size for path in made), made
    source = "".join(path.read_text() for path in tmp_path.glob("*.cu"))
    kernels = [
        "draw_uniform",
        "draw_whole_rows",
        "draw_long_rows",
        "join_long_rows",
        "draw_with_replacement",
        "enter_keys",
        "mark_new",
        "give_labels",
        "gather_rows",
    ]
    assert all(f"{name}_" in source for name in kernels)
    assert {name for name, one in vars(warp_programs).items() if isinstance(one, wp.Kernel)} == {
        *kernels
    }, "each kernel is named here"


def test_no_product_is_fused_with_a_sum(tmp_path: Path) -> None:
    """A fused one is rounded once where the CPU rounds twice: the logarithm would have other bits.

    Read in the assembly for the GPU, as the CPU's compiler is another one.
    """
    wp.compile_aot_module(warp_programs, device=None, arch=90, module_dir=tmp_path, use_ptx=True)
    (assembly,) = (path.read_text() for path in tmp_path.glob("*.ptx"))
    assert "mul.rn.f64" in assembly
    assert "add.rn.f64" in assembly
    assert "fma.rn.f64" not in assembly
