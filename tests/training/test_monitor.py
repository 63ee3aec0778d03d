"""What monitoring systems read of a run."""

import pytest

from bype.training.monitor import Timings, monitoring_text


def test_processes_tell_each_other_where_their_time_went():
    both = [Timings(rank, 2) for rank in range(2)]
    for step in range(3):
        for rank, timings in enumerate(both):
            timings.add(0.25 + rank, 0.5, 1.0 + step)
        total = sum(timings.to_sum() for timings in both)
        for timings in both:
            timings.newest.copy_(total)  # as the sum over all processes would leave it
            timings.add_sum()
    for timings in both:
        assert timings.totals.tolist() == [[0.75, 1.5, 6.0], [3.75, 1.5, 6.0]]


def test_the_text_is_what_an_independent_reader_understands():
    parser = pytest.importorskip("prometheus_client.parser")
    timings = Timings(0, 2)
    timings.totals[1, 2] = 1.5
    names = ("/runs/a", 'C:\\runs\\"b"\n')
    for name in names:
        text = monitoring_text(name, 12, timings, True)
        families = {family.name: family for family in parser.text_string_to_metric_families(text)}
        assert set(families) == {"bype_step", "bype_running", "bype_heartbeat_seconds", "bype_spent_seconds"}
        assert families["bype_running"].samples[0].value == 1
        assert families["bype_step"].samples[0].value == 12
        assert families["bype_spent_seconds"].type == "counter"
        spent = {(s.labels["rank"], s.labels["part"]): s.value for s in families["bype_spent_seconds"].samples}
        assert len(spent) == 6
        assert spent["1", "communication"] == 1.5
        assert {s.labels["run"] for family in families.values() for s in family.samples} == {name}
