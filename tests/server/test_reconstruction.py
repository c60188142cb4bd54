from __future__ import annotations

import pytest
from facegraph_client import InputError
from facegraph_server.reconstruction import check_texture_size


@pytest.mark.parametrize(("size_px", "faces"), [(64, 0), (4096, 4), (2048, 16), (4096, 0), (1024, 16)])
def test_what_one_answer_can_hold(size_px: int, faces: int) -> None:
    check_texture_size(size_px, faces)


@pytest.mark.parametrize(
    ("size_px", "faces", "message"),
    [(63, 1, "64 to 4096"), (4097, 0, "64 to 4096"), (4096, 5, "at most 3663 texels"), (2049, 16, "at most 2048")],
)
def test_what_it_cannot(size_px: int, faces: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_texture_size(size_px, faces)
