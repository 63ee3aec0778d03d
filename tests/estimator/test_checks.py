"""All of scikit-learn's own checks, with no exemption."""

from sklearn.utils.estimator_checks import parametrize_with_checks

import bype


@parametrize_with_checks([bype.ByPEVAE(n_pseudopoints=5, max_epochs=2, n_draws=10)])
def test_what_scikit_learn_asks_of_an_estimator(estimator, check):
    check(estimator)
