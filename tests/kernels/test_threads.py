import threading

import pytest
import torch

from foveate.kernels import threads

CPU = torch.device("cpu")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_results_keep_their_order_and_torch_its_threads():
    seen = set()

    def work(piece):
        seen.add((threading.current_thread().name, torch.get_num_threads()))
        return piece * piece

    assert list(threads.each(work, range(50), device=CPU)) == [n * n for n in range(50)]
    assert {n for _, n in seen} == {1}
    assert all(name.startswith("foveate-kernels") for name, _ in seen)
    assert torch.get_num_threads() == 2
    found = []
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert found == [2]


@pytest.mark.usefixtures("two_threads")
def test_an_error_comes_through():
    def work(piece):
        raise ValueError(f"no {piece}")

    with pytest.raises(ValueError, match="no 0"):
        list(threads.each(work, range(3), device=CPU))


@pytest.mark.usefixtures("two_threads")
def test_one_piece_is_done_in_place():
    name = next(threads.each(lambda _: threading.current_thread().name, [0], device=CPU))
    assert name == threading.current_thread().name
