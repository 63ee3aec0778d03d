"""The sections of the page that hold more than one kind of picture or a chart."""

import math
from collections import Counter
from collections.abc import Sequence

from bype.evaluation.beside import beside_linear, drawbacks
from bype.evaluation.pseudopoints import Coreset
from bype.report.blocks import card, cards_section, heading, key, picture_of, section, table, thumbnail
from bype.report.charts import Series, line_chart, scatter, weights_chart
from bype.report.contents import CLASS_POINTS, MOST_CLASSES, MOST_FEATURES, MOST_IMAGES, ClassOfPoints, RunContents
from bype.report.markup import Markup, element, minus
from bype.report.style import NUM_COLOURS, OTHERS
from bype.wording import counted

_LABELLED_CAPTION = (
    "Pseudo-points have labels: the line of training is −ELBO of p(x | y), of an example given its class, and that of "
    "validation is −ELBO of p(x)."
)


def training(runs: Sequence[RunContents]) -> Markup:
    """Return the curves of training, in a chart for each likelihood and data set: only these have one scale."""
    scales = [(run.config.likelihood, run.data.fingerprint) for run in runs]
    charts = [
        _curves([(k, run) for k, (run, own) in enumerate(zip(runs, scales, strict=True)) if own == scale], runs)
        for scale in dict.fromkeys(scales)
    ]
    charts = [chart for chart in charts if chart]
    text = (
        "Minus ELBO, with the full weight of the KL terms; lower is better. A very steep start may be cut off. A dot "
        "marks the model that is kept, the best on validation examples: if the line rises after it, longer training "
        "overfits."
    )
    if len(charts) > 1:
        text += " Runs with different likelihoods or data have different scales: do not compare their numbers."
    return cards_section("Training", text, charts)


def _curves(numbered: Sequence[tuple[int, RunContents]], runs: Sequence[RunContents]) -> Markup:
    """Return a card with the curves of some of the runs."""
    series, keys = [], []
    below = Markup("")
    for number, run in numbered:
        for part, is_dashed in (("validation", False), ("train", True)):
            if len(runs) > 1 and is_dashed and any("validation" in line.parts for line in run.metrics):
                continue  # several runs are compared on the validation split only
            points = [
                (line.epoch, line.parts[part]["negative_elbo"])
                for line in run.metrics
                if "negative_elbo" in line.parts.get(part, {})
            ]
            if points:
                x, y = zip(*points, strict=True)
                series.append(Series(f"{run.name}, {part}", x, y, is_dashed, number))
                label = part if len(runs) == 1 else run.name
                keys.append(key(label, "dash" if is_dashed and len(runs) == 1 else f"line c{number % 10}"))
                if is_dashed and run.config.labelled:
                    below = element("figcaption", _LABELLED_CAPTION)
        validated = [(line, line.parts.get("validation", {}).get("negative_elbo")) for line in run.metrics]
        for line, value in validated:
            if line.step == run.step and value is not None:  # a line of one point is drawn as a dot
                series.append(Series(f"{run.name}, kept", [line.epoch], [value], False, number))
                break
    if not series:
        return Markup("")
    updates = sorted({line.epoch for _, run in numbered for line in run.metrics if "update" in line.parts})
    if updates:
        keys.append(key("update of the pseudocoreset", "tick"))
    chart = line_chart(series, title="Minus ELBO by epoch", x_label="epoch", y_label="−ELBO, nats", marks=updates)
    return card("", chart.on_page(), element("ul", *keys, class_="legend"), below)


def how_good(runs: Sequence[RunContents]) -> Markup:
    """Return how each run compares with the linear model that has as many latents."""
    cards = []
    for run in runs:
        baseline = None if run.evaluation is None else run.evaluation.baseline
        if run.evaluation is None or run.density is None or baseline is None:
            continue
        words = [drawbacks(run.evaluation)]
        if baseline.gain_in_training is not None:
            words.append(f"Training gained {baseline.gain_in_training:,.1f} nats over its start (validation, −ELBO).")
        rows = [(row.name, [minus(row.own), minus(row.linear)]) for row in beside_linear(run.evaluation)]
        verdict = element("p", baseline.verdict(run.density, math.prod(run.data.shape)), class_="verdict")
        more = element("p", " ".join(filter(None, words)))
        compared = [table(["", "this model", baseline.kind], rows)] if rows else []
        cards.append(card(heading(runs, run), verdict, *compared, more))
    splits = {run.evaluation.split for run in runs if run.evaluation is not None}
    text = (
        f"The same {' or '.join(sorted(splits))} examples, by this model and by the linear model with as many latents."
    )
    return cards_section("How good is it?", text, cards)


def _bar(name: str, share: float, text: str) -> Markup:
    """Return a line with a bar of this share of the full length."""
    track = element("span", element("i", style=f"width:{100 * share:.1f}%"), class_="track")
    return element("div", element("span", name), track, element("span", text), class_="share")


def coreset(runs: Sequence[RunContents]) -> Markup:
    """Return the pseudo-points: images, or rows of a table."""
    stacks = [_points(runs, run, run.points) for run in runs if run.points is not None]
    if not any(stacks):
        return Markup("")
    text = "A few learned points with weights, which stand for all training examples."
    if any(run.points is not None and run.config.points_start == "examples" for run in runs):
        text += " They began as training examples and often stay near them: before you share this page, use bype audit."
    shown = stacks[0] if len(runs) == 1 else [element("div", *cards, class_="stack") for cards in stacks]
    return section("Pseudocoreset", text, element("div", *shown, class_="cards"), is_wide=True)


def _points(runs: Sequence[RunContents], run: RunContents, points: Coreset) -> list[Markup]:
    """Return the pictures of one run, or a table."""
    cards = []
    if points.points.ndim == 2:
        cards.append(card(heading(runs, run), _rows_of_points(run, points), element("figcaption", *_POINTS_CAPTION)))
    if run.coreset is not None:
        count = min(MOST_IMAGES, len(points.weights))
        caption = element("figcaption", f"The {count} heaviest of {len(points.weights)}, by weight.")
        cards.append(card(heading(runs, run), picture_of(run.coreset, f"Pseudo-points, {run.name}"), caption))
    if run.nearest is not None:
        caption = element("figcaption", "The heaviest, each followed by the training examples nearest to it.")
        cards.append(card("", picture_of(run.nearest, f"Nearest examples, {run.name}"), caption))
    return cards


_MAX_POINTS = 8
_POINTS_CAPTION = (
    f"The heaviest points, up to {_MAX_POINTS}, one in each column, with up to {MOST_FEATURES} features. ",
    element("code", "bype coreset"),
    " writes all points.",
)


def _short(value: float) -> str:
    """Return a number with three digits, or all digits before the point.

    Examples
    --------
    >>> _short(0.01234), _short(999.7), _short(12345.6)
    ('0.0123', '1,000', '12,346')
    """
    return minus(f"{value:,.0f}" if 999.5 <= abs(value) < 1e7 else f"{value:.3g}")


def _rows_of_points(run: RunContents, points: Coreset) -> Markup:
    """Return the heaviest points of a table, one in each column."""
    shown = slice(_MAX_POINTS)
    rows = [("weight", [f"{weight:,.1f}" for weight in points.weights[shown]])]
    if points.labels is not None:
        rows.append(("class", [str(label) for label in points.labels[shown]]))
    values = points.points[shown].T
    rows += [
        (name, [_short(value) for value in line]) for name, line in zip(run.data.column_names(), values, strict=True)
    ][:MOST_FEATURES]
    return table([], rows)


def weights(runs: Sequence[RunContents]) -> Markup:
    """Return how the weights of the pseudo-points are spread."""
    cards = []
    for run in runs:
        if run.points is None:
            continue
        found = run.points.weights
        chart = weights_chart(found.tolist()).on_page()
        text = (
            f"{len(found):,} points stand for {found.sum():,.0f} examples. They are as varied as "
            f"{run.points.effective_number:.0f} points of equal weight."
        )
        cards.append(card(heading(runs, run), chart, element("figcaption", text)))
    text = "The weight of a point is the number of examples that it stands for."
    return cards_section("Weights of the points", text, cards)


_MIX_CAPTION = "The share of each class among the training examples nearest to the pseudo-points, by weight."
_OWN_CAPTION = "Each point belongs to one class. The share of each class, by weight."


def _mix(run: RunContents) -> Markup | None:
    """Return bars with the share of each class in the weights of the points; ``None`` if there are no labels."""
    points = run.points
    if points is None or points.label_mix is None or not run.data.classes:
        return None
    shares = (points.weights[:, None] * points.label_mix).sum(0) / points.weights.sum()
    order = sorted(range(len(shares)), key=lambda k: -shares[k])[:MOST_CLASSES]
    largest = max(float(shares.max()), 1e-9)
    rows = [_bar(run.data.classes[k], shares[k] / largest, f"{100 * shares[k]:.1f} %") for k in order]
    return element("div", *rows)


def classes(runs: Sequence[RunContents]) -> Markup:
    """Return the points and samples of each class."""
    cards = []
    for run in runs:
        if run.classes:
            lines = [_class(shown) for shown in run.classes]
            content, caption = element("div", *lines, class_="classes"), _how_many("first", run)
            cards.append(card(heading(runs, run), content, *([element("figcaption", caption)] if caption else [])))
        elif (mix := _mix(run)) is not None:
            whose = _OWN_CAPTION if run.config.labelled else _MIX_CAPTION
            caption = f"{whose} {_how_many('heaviest', run)}".strip()
            cards.append(card(heading(runs, run), mix, element("figcaption", caption)))
    text = "The weight of each class among the points."
    has_own = any(run.classes for run in runs)
    if has_own:
        text = "Each class has points of its own: left the heaviest, right samples from them."
    return cards_section("Classes", text, cards, is_wide=has_own)


def _how_many(which: str, run: RunContents) -> str:
    """Say that not all classes are shown, if so."""
    count = len(run.data.classes)
    return "" if count <= MOST_CLASSES else f"The {which} {MOST_CLASSES} of {count:,} classes are shown."


def _class(shown: ClassOfPoints) -> Markup:
    """Return a class: its heaviest points, and samples."""
    points = counted(shown.num_points, "point")
    width = 100 * min(1, shown.num_points / CLASS_POINTS)  # so that all images are of one size
    return element(
        "div",
        element("strong", shown.name),
        element("span", f"{points}, {100 * shown.share:.1f} % of weight", class_="soft"),
        element("span", picture_of(shown.points, f"Points of {shown.name}"), style=f"width:{width:.0f}%"),
        picture_of(shown.samples, f"Samples of {shown.name}"),
    )


def features(runs: Sequence[RunContents]) -> Markup:
    """Return features of data and samples."""
    cards = []
    for run in runs:
        if (features := run.features) is None:
            continue
        rows = [
            (name, [f"{_short(a)} ±\u00a0{_short(b)}", f"{_short(c)} ±\u00a0{_short(d)}"])
            for name, a, b, c, d in zip(
                features.names,
                features.data_mean,
                features.data_spread,
                features.sample_mean,
                features.sample_spread,
                strict=True,
            )
        ]
        cards.append(card(heading(runs, run), table(["", "data", "samples"], rows)))
    text = f"Mean ± standard deviation of each feature, up to {MOST_FEATURES} of them, in the data and in samples."
    return cards_section("Features", text, cards)


def unusual(runs: Sequence[RunContents]) -> Markup:
    """Return the least likely examples."""
    cards = []
    for run in runs:
        if not run.unusual:
            continue
        rows, is_table = [], bool(run.unusual[0].columns)
        for found in run.unusual:
            cells = [f"{found.log_likelihood:,.1f}", f"{found.percentile:.1f}", f"{found.log_ratio:+,.1f}"]
            cells = [minus(cell) for cell in cells]
            what = ", ".join(found.columns)
            if found.picture is not None:
                what = thumbnail(found.picture, f"{found.name}, {run.name}")
            rows.append((found.name, [what, *cells]))
        head = ["example", "columns that made it unlikely" if is_table else "", "log p(x)", "percentile", "log ratio"]
        caption = element("figcaption", f"Of {run.unusual_of}. {_UNUSUAL_CAPTION} ", *_ALL_SCORES)
        cards.append(card(heading(runs, run), table(head, rows), caption))
    text = "In nats. The percentile is the percentage of training examples that are less likely."
    if any(run.unusual and run.config.likelihood == "bernoulli" for run in runs):
        text += (
            " The log p(x) of a Bernoulli likelihood is no density, and that of the linear model is: use the log ratio "
            "only to rank examples."
        )
    if any(run.unusual and run.config.likelihood in ("squared-error", "discretised-logistic") for run in runs):
        text += (
            " Here log p(x) is a density of pixels in [0, 1], or of columns. The negative log-likelihood above is on "
            "another scale."
        )
    return cards_section("Least likely examples", text, cards)


_UNUSUAL_CAPTION = (
    "The log ratio is log p(x) minus that of the linear model with as many latents. The likelihood alone ranks some "
    "outliers high, such as plain images."
)
_ALL_SCORES = (
    element("code", "bype score"),
    " writes all scores of all examples. It takes more draws, so its numbers differ a little.",
)


def maps(runs: Sequence[RunContents]) -> Markup:
    """Return the maps of latent means."""
    cards = []
    for run in runs:
        layout = None if run.evaluation is None else run.evaluation.map
        if layout is None or not len(layout.x) == len(layout.y) > 0:
            continue
        labels = layout.labels if layout.labels is not None and len(layout.labels) == len(layout.x) else None
        colours = _colours(labels or [])
        groups = None if labels is None else [colours.get(label, OTHERS) for label in labels]
        num_others = len(set(labels or [])) - len(colours)
        behind = OTHERS if num_others else None
        chart = scatter(layout.x, layout.y, groups, title=f"Map of latent means, {run.name}", behind=behind)
        is_own = run.evaluation is not None and run.evaluation.fingerprint == run.data.fingerprint
        names = run.data.classes if is_own else ()  # other data have other classes
        keys = [key(names[k] if 0 <= k < len(names) else str(k), f"c{colour}") for k, colour in colours.items()]
        if num_others:
            keys.append(key(f"{num_others:,} other classes", f"c{OTHERS}"))
        cards.append(card(heading(runs, run), chart.on_page(), element("ul", *keys, class_="legend")))
    text = "Latent means of examples, laid out by t-SNE: neighbours are similar."
    return cards_section("Map", text, cards)


def _colours(labels: Sequence[int]) -> dict[int, int]:
    """Return the colours of classes, at most ten; of more classes, those of the nine that most examples have."""
    counts = Counter(labels)
    if len(counts) <= NUM_COLOURS:
        return {label: colour for colour, label in enumerate(sorted(counts))}
    frequent = sorted(label for label, _ in counts.most_common(NUM_COLOURS - 1))
    return dict(zip(frequent, (colour for colour in range(NUM_COLOURS) if colour != OTHERS), strict=True))


def neighbours(runs: Sequence[RunContents]) -> Markup:
    """Return the accuracy of nearest neighbours."""
    series, keys = [], []
    for number, run in enumerate(runs):
        found = None if run.evaluation is None else run.evaluation.representation
        accuracy = {int(k): v for k, v in found.knn_accuracy.items() if k.isdecimal() and len(k) < 10} if found else {}
        if accuracy:
            series.append(Series(run.name, list(accuracy), [100 * v for v in accuracy.values()], colour=number))
            keys.append(key(run.name, f"line c{number % 10}"))
    if not series:
        return Markup("")
    chart = line_chart(
        series,
        title="Accuracy of the vote of K nearest neighbours",
        x_label="K",
        y_label="accuracy, %",
        min_range=2,
        most=100,
        x_ticks=sorted({int(x) for line in series for x in line.x}),
    )
    legend = [element("ul", *keys, class_="legend")] if len(runs) > 1 else []
    text = "How often the K examples nearest in latent space vote for the right class."
    return section("Nearest neighbours", text, element("div", card("", chart.on_page(), *legend), class_="cards"))


def augmentation(runs: Sequence[RunContents]) -> Markup:
    """Return the errors of classifiers."""
    rows = [
        (
            f"{run.name}, {found.way}" if len(runs) > 1 else found.way,
            [
                f"{found.real_share:g}",
                _errors(found.test_errors),
                f"{found.epochs} epochs, {found.num_examples:,} examples",
            ],
        )
        for run in runs
        for found in run.augmentation
    ]
    if not rows:
        return Markup("")
    return section(
        "Augmentation",
        "Test error of classifiers trained on real and generated examples; λ is the weight of the real ones. "
        "± is one standard error over seeds.",
        table(["latents from the", "λ", "test error, %", "trained"], rows),
        is_wide=True,
    )


def _errors(errors: Sequence[float]) -> str:
    mean = sum(errors) / max(1, len(errors))
    if len(errors) < 2:
        return f"{mean:.2f}"
    spread = (sum((error - mean) ** 2 for error in errors) / (len(errors) - 1) / len(errors)) ** 0.5
    return f"{mean:.2f} ± {spread:.2f}, {len(errors)} seeds"
