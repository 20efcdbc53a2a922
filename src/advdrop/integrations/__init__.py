"""Adversarial dropout inside other training loops. Each module needs the package that it is named after."""
