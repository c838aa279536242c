"""The golden suite's architectures, a module for each family."""

from cases import audio, convolutional, decoders, detection, diffusion, encoders, recurrent, sampling, seq2seq, vision

CASES = (
    *decoders.CASES,
    *encoders.CASES,
    *seq2seq.CASES,
    *vision.CASES,
    *convolutional.CASES,
    *detection.CASES,
    *sampling.CASES,
    *audio.CASES,
    *diffusion.CASES,
    *recurrent.CASES,
)
