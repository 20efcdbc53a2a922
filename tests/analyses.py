"""An audit and an explanation that the tests of the analysis and of its figures share."""

from advdrop.analysis.audit import Audit
from advdrop.analysis.explain import Explanation

AUDIT = Audit(
    name="one",
    units=12,
    examples=5,
    budgets=[0, 1, 4],
    worst=[80.0, 60.0, 20.0],
    certain=[80.0, 40.0, 0.0],
    random=[80.0, 80.0, 60.0],
    exact=False,
    fewest=[0, 1, 3, None, 2],
    at_least=[0, 1, 2, 2, 2],
    critical_units=[(7, 50.0), (3, 25.0)],
    fragile_examples=[(1, 7)],
)

EXPLANATION = Explanation(
    title="One",
    image=[[0.0, 1.0], [0.5, 0.2]],
    shape=(6,),
    sampled=[1, 1, 0, 0, 1, 1],
    jacobian=[-3.0, 1.0, 5.0, 0.0, -0.5, 0.2],
    adversarial=[0, 1, 1, 0, 1, 1],
    budget=2,
    target="the label cat",
    classes=["cat", "<dog>"],
    whole=[0.9, 0.1],
    before=[0.8, 0.2],
    after=[0.3, 0.7],
    divergence=(0.22, 1.2),
)
