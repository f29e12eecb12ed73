"""Several threads at the same pending values: right numbers, and an end."""

import threading

import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tests.attacks.alone import alone, no_failures


def test_threads_look_at_what_others_record():
    no_failures(alone("threads", 30, seconds=120))


@pytest.mark.slow
def test_threads_look_for_long():
    no_failures(alone("threads", 1500, seconds=600))


def test_a_value_is_the_same_for_all_who_look_at_once():
    for visit in range(5):
        x = tj.tensor([0.1 * visit, 0.2, 0.3], requires_grad=True)
        y = tnp.exp(tnp.sin(x) * x).sum()
        start, seen = threading.Barrier(4), []

        def look(start=start, seen=seen, y=y):
            start.wait()
            seen.append(float(y))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        expected = np.exp(np.sin(x.numpy()) * x.numpy()).sum()
        assert len(seen) == 4
        np.testing.assert_allclose(seen, expected, rtol=1e-5)
