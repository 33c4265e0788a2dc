"""Every kernel is compiled for each kind of GPU, with no GPU at hand: NVRTC comes with Warp."""

from pathlib import Path

import pytest
import warp as wp

from gigl_loader.on_device import warp_kernels


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_all_kernels_compile_for(arch: int, tmp_path: Path) -> None:
    wp.init()
    made = wp.compile_aot_module(
        warp_kernels, device=None, arch=arch, module_dir=tmp_path, use_ptx=False
    )
    assert any(path.suffix == ".cubin" and path.stat().st_size for path in made), made
    source = "".join(path.read_text() for path in tmp_path.glob("*.cu"))
    kernels = [
        "_draw_uniform",
        "_draw_whole_rows",
        "_draw_with_replacement",
        "_enter",
        "_look_up",
        "_gather",
    ]
    assert all(f"{name}_" in source for name in kernels)
