"""How pictures of the gallery look: on a clear ground and in colours that can be read on white and on black."""

GREY = "#7d8694"


def set_style(gallery_conf, fname):
    """Set the style before each example; sphinx-gallery calls this."""
    import matplotlib as mpl

    mpl.rcParams.update(
        {
            "figure.dpi": 100,
            "figure.constrained_layout.use": True,
            "font.size": 10,
            "axes.titlesize": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": mpl.cycler(color=["#3182ce", "#d9692b", "#38a169", "#8b6fd6", GREY]),
            "axes.facecolor": "none",
            "figure.facecolor": "none",
            "legend.framealpha": 0,
            **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), GREY),
        }
    )
