"""The method: a pseudocoreset, the prior that is built on it, and the rules that move it; one file for each algorithm.

``coreset`` holds points and weights, ``prior`` the mixture around them, ``rule`` the contract of all rules. ``psvi`` is
the published rule; ``ascent``, ``tracking`` and ``joint`` are ours and the controls.
"""
