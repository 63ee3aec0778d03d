"""Print the table of docs/results/paper.md from the records in results/paper.

Run from the root of the repository: ``python benchmarks/paper_table.py``. A record is what
``benchmarks/paper_cells.py`` leaves of a cell that was trained and measured at full protocol.
"""

import json
import statistics
from pathlib import Path

RECORDS = Path(__file__).parent.parent / "results" / "paper"
PUBLISHED = {
    ("mnist", "gaussian"): "24.41",
    ("mnist", "vamp"): "23.65",
    ("mnist", "exemplar"): "23.83",
    ("mnist", "bype"): "23.61",
    ("fashion-mnist", "gaussian"): "21.43",
    ("fashion-mnist", "vamp"): "20.87",
    ("fashion-mnist", "exemplar"): "21.00",
    ("fashion-mnist", "bype"): "20.85",
}
"""Table 1 of the paper, the rows of the VAE."""
DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
PRIORS = {
    "gaussian": "Gaussian",
    "vamp": "VampPrior",
    "exemplar": "Exemplar",
    "bype": "ByPE, as published",
    "ours-500": "ours, 500 points",
    "ours-5000": "ours, 5,000 points",
}


def table() -> list[str]:
    """Return the lines of the table: the paper's number, ours, the difference."""
    cells: dict[tuple[str, str], list[dict]] = {}
    for path in sorted(RECORDS.glob("*/record.json")):
        record = json.loads(path.read_text())
        cells.setdefault((record["cell"]["data"], record["cell"]["prior"]), []).append(record)
    lines = [
        "| data | prior | paper | here | difference | seeds | epochs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for data in DATA:
        for prior in PRIORS:
            records = cells.get((data, prior), [])
            published = PUBLISHED.get((data, prior), "")
            if not records:
                lines.append(f"| {DATA[data]} | {PRIORS[prior]} | {published} | not yet run | | | |")
                continue
            densities = [record["results"]["evaluations"][0]["density"] for record in records]
            values = [density["negative_log_likelihood"]["value"] for density in densities]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            mean = statistics.mean(values)
            difference = f"{mean - float(published):+.3f}" if published else ""
            capped = "".join(", capped" for record in records[:1] if "capped" in record["protocol"])
            seeds = ", ".join(str(record["cell"]["seed"]) for record in records)
            epochs = ", ".join(f"{record['epochs']:g}" for record in records) + capped
            row = (DATA[data], PRIORS[prior], published, f"{mean:.3f}{spread}", difference, seeds, epochs)
            lines.append(f"| {' | '.join(row)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
