import inspect

from advdrop.lab.config.networks import NETWORKS, Network
from advdrop.lab.models.networks import NETWORKS as BUILDERS


def test_a_networks_section_has_the_options_of_its_builder():
    assert set(NETWORKS) == set(BUILDERS) - {"autoencoder"}
    for name, kind in NETWORKS.items():
        parameters = inspect.signature(BUILDERS[name]).parameters.values()
        options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        section = kind()
        assert section.name == name
        assert section.model_dump(exclude={"name", *Network.model_fields}) == options
