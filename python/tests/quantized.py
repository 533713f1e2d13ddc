"""PyTorch's quantisation hooks, as arithmetic over the gradients of all ranks."""

import torch


def _scale(x):
    low, high = min(x.min().item(), 0.0), max(x.max().item(), 0.0)
    return low, max((high - low) / 255, 1.1920929e-07)


def _round_trip(x):
    low, scale = _scale(x)
    zero = min(max(-round(low / scale), 0), 255)
    codes = torch.clamp(torch.round(x / scale) + zero, 0, 255)
    return scale * (codes - zero)


def per_tensor(gradients):
    return torch.stack([_round_trip(gradient) for gradient in gradients]).mean(0)


def per_channel(gradients, row=512):
    return torch.stack(
        [
            torch.cat([_round_trip(part) for part in gradient.split(row)])
            for gradient in gradients
        ]
    ).mean(0)


def most_lost(gradients):
    """What one encoding of each and one of their average can lose."""
    each = sum(_scale(gradient)[1] for gradient in gradients) / len(gradients)
    again = _scale(torch.stack(gradients).mean(0))[1] if len(gradients) > 2 else 0
    return 0.5 * (each + again)
