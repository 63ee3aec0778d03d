"""How pictures of the gallery look."""


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
            "axes.prop_cycle": mpl.cycler(color=["#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#718096"]),
        }
    )
