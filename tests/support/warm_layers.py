"""PyG's layers, built before processes fork: each process would spend 80 ms on each class of them.

With the first layer of a class PyG writes a module for that class, from a template, and compiles
it. This is most of what a rank does that compares a model of each kind. Imported for pytest-xdist
alone, whose processes all fork from one.
"""

import contextlib
import warnings

import torch
from torch_geometric import nn

with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
    # of layers that are to be replaced, and that have other arguments: tests say what they want
    warnings.simplefilter("ignore")
    for _name in sorted({*nn.conv.__all__} - {"MessagePassing"}):  # that one is the base of users'
        for _given in ((4, 4), (4, 4, 2), (4, 4, 2, 2), (4,), ()):
            # the class is ready before a layer finds that it lacks an argument
            with contextlib.suppress(Exception):
                getattr(nn, _name)(*_given)
                break
