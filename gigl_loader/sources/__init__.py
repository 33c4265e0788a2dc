"""Who makes batches: the seam `BatchSource`, its input, the turns of a start, and two sources.

Face: `batch_source`, `sampled_input`, `held_seeds`, `seeds`; `DistSamplingProducer`, the sources.
Must not know: how loaders count epochs; servers and clients.
"""
