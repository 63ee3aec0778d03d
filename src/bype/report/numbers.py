"""The table of numbers."""

import math
from collections.abc import Callable, Sequence

from bype.evaluation.records import Density, Estimate, Representation
from bype.report.blocks import heading, section, table
from bype.report.contents import RunContents
from bype.report.markup import Markup, minus
from bype.wording import counted

UNITS = (
    "Likelihood, ELBO and KL are in nats per example; smaller is better. For accuracy, larger is better. "
    "± is one standard error over examples."
)

_NETWORKS = {
    "vae": "VAE",
    "hvae": "HVAE",
    "convhvae": "ConvHVAE",
    "residual": "residual VAE",
    "dense": "dense VAE that began as a linear model",
}

_LIKELIHOODS = {
    "squared-error": "squared error",
    "learned-gaussian": "Gaussian with a learned variance",
    "diagonal-gaussian": "Gaussian with a learned variance for each column",
    "conditional-gaussian": "Gaussian whose variances depend on the latents",
    "robust-gaussian": "Gaussian whose variances depend on the latents, with a wide Gaussian for outliers",
    "gaussian": "Gaussian",
    "bernoulli": "Bernoulli",
    "discretised-logistic": "discretised logistic",
}


def _describe_prior(run: RunContents) -> str:
    config = run.config
    match config.prior:
        case "gaussian":
            return "standard normal"
        case "vamp":
            return f"VampPrior of {config.components} pseudo-inputs"
        case "exemplar":
            return f"exemplars, {config.components} in a step"
        case "bype":
            rule = "" if config.rule is None else config.rule.name
            how = "never moved" if rule == "frozen" else f"moved by {rule}"
            return f"pseudocoreset of {config.components} points, {how}"
        case _:
            return f"{config.prior}, a prior of its own"


def number_lines(runs: Sequence[RunContents]) -> list[tuple[str, list[str]]]:
    """Return all that is known about the runs: a name and a value for each run, empty if it is not known."""
    lines: list[tuple[str, list[str]]] = []

    def add(name: str, value: Callable[[RunContents], str]) -> None:
        lines.append((name, [value(run) for run in runs]))

    add("Network", lambda run: f"{_NETWORKS[run.config.network]}, {counted(run.config.latent_dim, 'latent')}")
    add("Prior", _describe_prior)
    add("Likelihood", lambda run: _LIKELIHOODS[run.config.likelihood])
    add("Trained on", _trained_on)
    add("Model kept", _model_of)
    add("Evaluated on", _evaluated_on)
    add("Negative log-likelihood", _likelihood)
    add("As a density (variance ½)", _normalised)
    add("Bits per dimension", _bits)
    add("−ELBO", lambda run: _of_density(run, lambda d: _pm(d.negative_elbo)))
    add("−Reconstruction", lambda run: _of_density(run, lambda d: _pm(d.negative_reconstruction)))
    levels = list(dict.fromkeys(level for run in runs for level in _levels(run)))
    for level in levels:
        add(f"KL of {level}", lambda run, level=level: _kl(run, level))  # type: ignore[misc]
    add("A better prior could gain", _gap)
    add("Active units", _active)
    add("Linear probe", lambda run: _of_representation(run, lambda r: f"{100 * r.probe_accuracy:.2f} %"))
    return lines


def numbers(runs: Sequence[RunContents]) -> Markup:
    """Return the table of all that is known about the runs."""
    audits = ("Copies of training examples", ["" if run.audit is None else run.audit.verdict for run in runs])
    lines = [*number_lines(runs), audits]
    return section("In numbers", UNITS, table(["", *[heading(runs, run) for run in runs]], lines), is_wide=True)


def _trained_on(run: RunContents) -> str:
    shape = run.data.shape
    size = counted(shape[0], "feature") if len(shape) == 1 else " × ".join(map(str, shape))
    return f"{run.data.num_train:,} examples of {size}"


def _model_of(run: RunContents) -> str:
    epoch = next((line.epoch for line in run.metrics if line.step == run.step), None)
    when = f"step {run.step:,}" if epoch is None else f"epoch {round(epoch, 1):g} (step {run.step:,})"
    last = max((line.epoch for line in run.metrics), default=None)
    if last is None:
        return when
    epochs = "epoch" if last == 1 else "epochs"
    return f"that of {when}, of {round(last, 1):g} {epochs}; seed {run.config.seed}"


def _evaluated_on(run: RunContents) -> str:
    if run.evaluation is None:
        return ""
    density = run.evaluation.density
    is_own = run.evaluation.fingerprint == run.data.fingerprint
    text = f"{run.evaluation.split} split" + ("" if is_own else f" of {run.evaluation.source}")
    return text if density is None else f"{text}: {density.num_images:,} examples, {density.num_samples:,} draws each"


def _of_density(run: RunContents, value: Callable[[Density], str]) -> str:
    return "" if run.density is None else value(run.density)


def _of_representation(run: RunContents, value: Callable[[Representation], str]) -> str:
    found = None if run.evaluation is None else run.evaluation.representation
    return "" if found is None else value(found)


def _likelihood(run: RunContents) -> str:
    def say(density: Density) -> str:
        error = density.monte_carlo_error
        if error is None:
            notes = ["a single draw"]
        elif density.has_few_draws:  # then the error of the draws is not known either
            size = f"{density.median_effective_sample_size:.1f} of {density.num_samples:,} draws"
            notes = [f"too high: rests on {size}"]
        else:
            notes = [f"draws ± {error:.3f}"]
        if density.scale == "unnormalised":
            notes.append("the paper's scale, not normalised")
        if density.precision_difference is not None:
            notes.append(f"{density.precision}: {density.precision_difference:+.3f} against float32")
        return f"{_pm(density.negative_log_likelihood)} ({'; '.join(notes)})"

    return _of_density(run, say)


def _normalised(run: RunContents) -> str:
    return _of_density(
        run, lambda d: f"{d.normalised:.2f}" if d.scale == "unnormalised" and d.normalised is not None else ""
    )


def _bits(run: RunContents) -> str:
    return _of_density(run, lambda d: "" if d.bits_per_dimension is None else f"{d.bits_per_dimension:.4f}")


def _levels(run: RunContents) -> list[str]:
    return [] if run.density is None else list(run.density.kl)


def _kl(run: RunContents, level: str) -> str:
    return _of_density(run, lambda d: _pm(d.kl[level]) if level in d.kl else "")


def _gap(run: RunContents) -> str:
    gap = None if run.evaluation is None else run.evaluation.prior_gap
    if gap is None:
        return ""
    low, high = max(0.0, gap.smallest_gap.value), max(0.0, gap.largest_gap.value)
    if not gap.is_known:
        return "not known: there are too few examples"
    return f"{low:.2f} to {high:.2f}, of a KL of {_pm(gap.kl)}"


def _active(run: RunContents) -> str:
    units = None if run.evaluation is None else run.evaluation.active_units
    return "" if units is None else f"{units.num_active} of {units.num_units}"


def _pm(estimate: Estimate) -> str:
    r"""Return a value and its error with as many decimals as the first three digits of the error have, at most three.

    Examples
    --------
    >>> _pm(Estimate(-577.2314, 37.988)), _pm(Estimate(8.1618, 0.0412))
    ('−577.2\xa0±\xa038.0', '8.162\xa0±\xa00.041')
    """
    if estimate.error == 0:  # of a single example
        return minus(f"{estimate.value:,.3f}")
    decimals = min(3, max(0, 2 - math.floor(math.log10(estimate.error))))
    return minus(f"{estimate.value:,.{decimals}f}\u00a0±\u00a0{estimate.error:,.{decimals}f}")
