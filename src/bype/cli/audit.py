"""Finding copies of training examples in a model."""

import dataclasses
from dataclasses import dataclass

from bype.cli.options import Force, MaybePath, MovedStore, RunFolder, UsageError, parse, require_free, require_writable
from bype.cli.output import result

_ABOUT = """Measure how close pseudo-points and samples are to training examples.

The distances are compared with those of held-out examples. Do this before you share a model. It is a measure, not a
guarantee. The record is audit.json in the run."""


@dataclass(frozen=True)
class _Audit:
    run: RunFolder
    out: MaybePath = None
    """Write a page to this .html file, or the closest pairs of images to a .png file"""
    data: MovedStore = None
    samples: int = 1000
    """Draw this many samples"""
    force: Force = False


def audit(words: list[str]) -> int:
    """Compare points and samples with training examples."""
    options = parse(_Audit, words, "bype audit", _ABOUT)
    out = options.out
    if out is not None and out.suffix not in (".html", ".htm", ".png"):
        raise UsageError(f"cannot write an audit to {out}; choose a name that ends in .html or .png")
    if out is not None:
        require_free(out, options.force)
    from bype.console import progress_bar
    from bype.data.files import name_of, write_atomic
    from bype.evaluation.audit import audit_run
    from bype.evaluation.audit_records import MAX_SAMPLES
    from bype.plates import is_image_shape, png
    from bype.report.audit_page import CAVEAT, audit_page, pairs_picture
    from bype.run.opened import TrainedRun

    if not 1 <= options.samples <= MAX_SAMPLES:
        raise UsageError(f"--samples must be between 1 and {MAX_SAMPLES:,}")
    run = TrainedRun.open(options.run, options.data)
    require_writable(options.run)
    is_image = is_image_shape(run.data.shape)
    if out is not None and out.suffix == ".png" and not is_image:
        raise UsageError("this run was trained on features, which have no picture; choose a name that ends in .html")
    found, shown = audit_run(run, options.data, options.samples, progress_bar)
    expected = f"{100 * found.expected_share:.1f}% of new examples are expected below each threshold"
    print(f"held-out examples: {found.num_held_out:,} of {found.held_out}; {expected}")
    print(f"  median distance to the nearest of {found.num_train:,} training examples {found.median_distance:.3f}")
    for group in found.groups:
        print(f"{group.count:,} {group.kind}: median distance {group.median_distance:.3f}, {group.num_copies} copies")
        shares = {
            "ratio to the second nearest": group.by_ratio,
            "ratio at one contrast": group.by_contrast,
            "distance": group.by_distance,
        }
        for title, share in shares.items():
            if share is not None:
                print(f"  closer by {title}: {100 * share.share:.1f}% (p-value {share.p_value:.2g})")
    if out is not None:
        name = name_of(options.run)
        page = (
            png(pairs_picture(shown), 3) if out.suffix == ".png" else audit_page(name, found, shown, is_image).encode()
        )
        write_atomic(out, page)
        print(f"closest pairs in {out}")
    print(f"\n{found.verdict}\n{CAVEAT}")
    result(**dataclasses.asdict(found), verdict=found.verdict)
    return 0
